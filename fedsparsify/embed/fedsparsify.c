/* See fedsparsify.h. What a plan's bytes mean: fedsparsify/export/plan.py. */
#include "fedsparsify.h"

#include <cpuid.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAGIC, CHECKSUM, SIZE, LEVEL, INPUTS, OUTPUTS, CODE, CODE_SIZE, ENTRY, WORDS, WORD_COUNT, MOVED, MOVED_COUNT,
       GROUPS, GROUP_COUNT, HEAD_WORDS };
enum { JOBS, JOB_COUNT, ARENA, GROUP_WORDS };
enum { CHECKED_FROM = 16, LINE = 64, PAGE = 4096 };

typedef int32_t serve(void *, void *, int64_t jobs, int64_t count, int64_t arena, int64_t x, int64_t y, int64_t, int64_t);

struct fedsparsify_plan {
    uint8_t *file;
    uint64_t size;
    int64_t *words; /* programs' headers and jobs, with addresses in place of offsets */
    void **arenas;  /* one per group of jobs; what a program never writes there stays zero */
};

static uint32_t crc32_of(const uint8_t *data, uint64_t size) {
    uint32_t table[256], value = ~0u;
    for (uint32_t k = 0; k < 256; k++) {
        uint32_t entry = k;
        for (int bit = 0; bit < 8; bit++) entry = (entry >> 1) ^ (entry & 1 ? 0xEDB88320u : 0);
        table[k] = entry;
    }
    while (size--) value = table[(value ^ *data++) & 255] ^ (value >> 8);
    return ~value;
}

/* 4 with the AVX-512 of x86-64-v4, 3 with AVX2 and FMA, else 1; what the system saves on a switch counts too. */
static uint64_t level_here(void) {
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 1;
    unsigned fma = c & bit_FMA, rest = (c & bit_F16C) && (c & bit_MOVBE);
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if (!fma || !rest || (low & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 1;
    if (!(b & bit_AVX2) || !(b & bit_BMI) || !(b & bit_BMI2)) return 1;
    unsigned v4 = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
    return (b & v4) == v4 && (low & 0xE6) == 0xE6 ? 4 : 3;
}

static int inside(uint64_t at, uint64_t count, uint64_t each, uint64_t size) {
    return at <= size && count <= (size - at) / each;
}

/* Why the file cannot be used; NULL where it can. */
static const char *fault_of(const uint8_t *file, uint64_t size) {
    const uint64_t *head = (const uint64_t *)file;
    if (memcmp(file, "FSPLAN\0\1", 8)) return "it is no plan of this version";
    if (head[SIZE] != size || head[CHECKSUM] != crc32_of(file + CHECKED_FROM, size - CHECKED_FROM)) return "it is damaged";
    if (head[LEVEL] > level_here()) return "it is for a processor with more instructions";
    if (head[CODE] % PAGE || !inside(head[CODE], head[CODE_SIZE], 1, size) || head[ENTRY] >= head[CODE_SIZE] ||
        !inside(head[WORDS], head[WORD_COUNT], 8, size) || !inside(head[MOVED], head[MOVED_COUNT], 8, size) ||
        !inside(head[GROUPS], head[GROUP_COUNT], 8 * GROUP_WORDS, size))
        return "its parts lie outside of it";
    const uint64_t *moved = (const uint64_t *)(file + head[MOVED]), *groups = (const uint64_t *)(file + head[GROUPS]);
    for (uint64_t k = 0; k < head[MOVED_COUNT]; k++)
        if (moved[k] / 2 >= head[WORD_COUNT]) return "its parts lie outside of it";
    for (uint64_t k = 0; k < head[GROUP_COUNT]; k++)
        if (groups[GROUP_WORDS * k + JOBS] >= head[WORD_COUNT]) return "its parts lie outside of it";
    return NULL;
}

static const char *prepare(fedsparsify_plan *plan) {
    const uint64_t *head = (const uint64_t *)plan->file;
    if (mprotect(plan->file + head[CODE], head[CODE_SIZE], PROT_READ | PROT_EXEC)) return "the system forbids to run its code";
    plan->words = malloc(8 * head[WORD_COUNT] + 8);
    plan->arenas = calloc(head[GROUP_COUNT] + 1, sizeof(void *));
    if (!plan->words || !plan->arenas) return "there is not enough memory";
    memcpy(plan->words, plan->file + head[WORDS], 8 * head[WORD_COUNT]);
    const uint64_t *moved = (const uint64_t *)(plan->file + head[MOVED]);
    for (uint64_t k = 0; k < head[MOVED_COUNT]; k++)
        plan->words[moved[k] / 2] += moved[k] % 2 ? (int64_t)plan->words : (int64_t)plan->file;
    const uint64_t *groups = (const uint64_t *)(plan->file + head[GROUPS]);
    for (uint64_t k = 0; k < head[GROUP_COUNT]; k++) {
        uint64_t bytes = groups[GROUP_WORDS * k + ARENA];
        if (posix_memalign(&plan->arenas[k], LINE, bytes)) {
            plan->arenas[k] = NULL;
            return "there is not enough memory";
        }
        memset(plan->arenas[k], 0, bytes);
    }
    return NULL;
}

fedsparsify_plan *fedsparsify_load(const char *path, const char **error) {
    const char *unused, **why = error ? error : &unused;
    fedsparsify_plan *plan = calloc(1, sizeof *plan);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    off_t size = file < 0 ? -1 : lseek(file, 0, SEEK_END); /* fstat would need a newer glibc */
    *why = "it cannot be read";
    if (plan && size >= 0) {
        plan->size = (uint64_t)size;
        void *memory = plan->size < 8 * HEAD_WORDS ? MAP_FAILED : mmap(NULL, plan->size, PROT_READ, MAP_PRIVATE, file, 0);
        *why = "it is cut off, or cannot be mapped";
        if (memory != MAP_FAILED) {
            plan->file = memory;
            *why = fault_of(plan->file, plan->size);
            if (!*why) *why = prepare(plan);
        }
    }
    if (file >= 0) close(file);
    if (!*why) return plan;
    fedsparsify_free(plan);
    return NULL;
}

size_t fedsparsify_inputs(const fedsparsify_plan *plan) { return ((const uint64_t *)plan->file)[INPUTS]; }

size_t fedsparsify_outputs(const fedsparsify_plan *plan) { return ((const uint64_t *)plan->file)[OUTPUTS]; }

void fedsparsify_run(fedsparsify_plan *plan, const float *x, float *y) {
    const uint64_t *head = (const uint64_t *)plan->file, *groups = (const uint64_t *)(plan->file + head[GROUPS]);
    int64_t unused[2];
    union { void *address; serve *call; } entry = {plan->file + head[CODE] + head[ENTRY]};
    for (uint64_t k = 0; k < head[GROUP_COUNT]; k++, groups += GROUP_WORDS)
        entry.call(unused, unused + 1, (int64_t)(plan->words + groups[JOBS]), (int64_t)groups[JOB_COUNT],
                   (int64_t)plan->arenas[k], (int64_t)x, (int64_t)y, 0, 0);
}

void fedsparsify_free(fedsparsify_plan *plan) {
    if (!plan) return;
    if (plan->arenas)
        for (uint64_t k = 0; k < ((const uint64_t *)plan->file)[GROUP_COUNT]; k++) free(plan->arenas[k]);
    free(plan->arenas);
    free(plan->words);
    if (plan->file) munmap(plan->file, plan->size);
    free(plan);
}

/* Run a sparse network that `fedsparsify export model.fsz --to plan` prepared. No Python, no library but libc; Linux on x86-64.
 *
 * A plan holds machine code. Load only plans that you made yourself, as you would only run your own programs.
 */
#ifndef FEDSPARSIFY_H
#define FEDSPARSIFY_H
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fedsparsify_plan fedsparsify_plan;

/* Map a plan and check it. NULL where it cannot be used; *error, if given, then says why. */
fedsparsify_plan *fedsparsify_load(const char *path, const char **error);

/* Floats of one batch, and of its outputs. */
size_t fedsparsify_inputs(const fedsparsify_plan *plan);
size_t fedsparsify_outputs(const fedsparsify_plan *plan);

/* Run a batch. One thread uses a plan at a time; several plans may run side by side. */
void fedsparsify_run(fedsparsify_plan *plan, const float *x, float *y);

void fedsparsify_free(fedsparsify_plan *plan);

#ifdef __cplusplus
}
#endif
#endif

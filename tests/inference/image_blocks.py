"""More blocks as people write them: decoders, resized images, shuffles, largest values, curves, constants by sample."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Decoder(nn.Module):
    """A U-Net's ends, by transposed convolutions of several kernels, strides, groups and borders."""

    sample = (3, 20, 12)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, 2, 1)
        self.up = nn.Sequential(nn.ConvTranspose2d(12, 8, 2, 2, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.wide = nn.ConvTranspose2d(16, 6, 3, 2, 1, output_padding=1, groups=2)
        self.rest = nn.Sequential(
            nn.BatchNorm2d(6), nn.LeakyReLU(0.1), nn.ConvTranspose2d(6, 4, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(4, 4, 5, 3), nn.Conv2d(4, 4, 3, 2, 1), nn.ConvTranspose2d(4, 3, (2, 3), (1, 2), (1, 2)),
            nn.ConvTranspose2d(3, 2, 1, 3, output_padding=2), nn.ConvTranspose2d(2, 2, 3, padding=1),
        )  # fmt: skip

    def forward(self, x):
        wide = self.first(x)
        return self.rest(self.wide(torch.cat([wide, self.up(self.second(wide))], 1)))


class Resized(nn.Module):
    """A pyramid: sums with smaller images made larger, in all ways of interpolation."""

    sample = (3, 16, 24)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, 4, 1)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)

    def forward(self, x):
        wide = F.relu(self.first(x))
        small = F.relu(self.second(wide))
        wide = wide + F.interpolate(small, size=wide.shape[-2:]) + self.up(small)
        wide = F.interpolate(wide, size=(13, 18), mode="nearest") + F.interpolate(wide, size=(13, 18), mode="bicubic")
        return self.head(F.interpolate(wide, scale_factor=(0.6, 1.5), mode="bilinear"))


class Shuffles(nn.Module):
    """Pixels that become channels, channels that become pixels, patches in rows."""

    sample = (3, 16, 24)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.rows = nn.Conv2d(12, 16, 3, padding=1), nn.Conv2d(16, 12, 1), nn.Linear(48, 5)
        self.larger, self.mixed = nn.PixelShuffle(2), nn.ChannelShuffle(4)

    def forward(self, x):
        y = self.second(self.mixed(torch.relu(self.first(F.pixel_unshuffle(x, 2)))))
        y = F.unfold(self.larger(y), 4, stride=4).transpose(1, 2)
        windows = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        return self.rows(y + windows).mean(1)


class Largest(nn.Module):
    """Gates by means and largest values of pixels and of channels (Woo et al., 2018), gated linear units."""

    sample = (3, 20, 24)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.gate, self.head = nn.Conv2d(3, 16, 3, 2, 1), nn.Linear(16, 16), nn.Linear(7, 10)
        self.spatial, self.units = nn.Conv2d(2, 1, 7, padding=3), nn.Conv2d(16, 14, 1)

    def forward(self, x):
        x = F.relu(self.stem(x))
        gate = self.gate(F.adaptive_avg_pool2d(x, 1).flatten(1)) + self.gate(F.adaptive_max_pool2d(x, 1).flatten(1))
        x = x * torch.sigmoid(gate)[:, :, None, None]
        x = x * torch.sigmoid(self.spatial(torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)))
        x = F.adaptive_max_pool2d(F.glu(self.units(x), 1), (5, 4))
        return F.log_softmax(self.head(x.amax((2, 3)) - x.amin((2, 3))), 1)


class Curves(nn.Module):
    """Activations with logarithms, and a norm of each image."""

    sample = (3, 12, 10)

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(3 if k == 0 else 8, 8, 3, padding=1) for k in range(5)])
        self.norms = nn.ModuleList([nn.InstanceNorm2d(8), nn.InstanceNorm2d(8, affine=True, track_running_stats=True)])
        self.curves = [nn.Mish(), nn.SELU(), nn.Softplus(), nn.LogSigmoid(), lambda x: torch.log(1 + x * x)]

    def forward(self, x):
        for convolution, curve in zip(self.convolutions, self.curves, strict=True):
            x = curve(convolution(x))
        return self.norms[1](self.norms[0](x)).logsumexp((2, 3))


class Coordinates(nn.Module):
    """Constants that a forward makes for each sample, joined to an image (Liu et al., 2018) and added to tokens."""

    sample = (3, 12, 8)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.embed, self.scale = (
            nn.Conv2d(5, 16, 4, 4),
            nn.Linear(16, 12, bias=False),
            nn.Parameter(torch.ones(12)),
        )
        self.norm, self.turned, self.head = nn.BatchNorm1d(12), nn.BatchNorm2d(16), nn.Linear(12, 10)

    def forward(self, x):
        b, _, h, w = x.shape
        rows = torch.linspace(-1, 1, h, device=x.device).view(1, 1, h, 1).expand(b, 1, h, w)
        columns = torch.linspace(-1, 1, w, device=x.device).view(1, 1, 1, w).expand(b, 1, h, w)
        x = self.stem(torch.cat([x, rows, columns], 1)).flatten(2).unsqueeze(3)
        x = self.turned(x.permute(0, 1, 3, 2)).flatten(2).transpose(1, 2)
        places = torch.arange(x.shape[1] * 12.0).sin().view(1, -1, 12).repeat(b, 1, 1)
        x = self.embed(x) + places
        x = self.norm(x.flatten(0, 1)).reshape_as(x)
        return self.head(torch.addcmul(x, x, self.scale, value=0.5).mean(1))


class Turned(nn.Module):
    """A batch norm of what were rows: their number is that of the channels."""

    sample = (3, 8, 6)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x):
        return self.norm(self.stem(x).permute(0, 2, 1, 3)).mean((2, 3))


IMAGE_BLOCKS = (Decoder, Resized, Shuffles, Largest, Curves, Coordinates, Turned)

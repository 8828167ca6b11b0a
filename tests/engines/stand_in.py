"""A GPU's engine without a GPU: all of `CudaEngine` but its kernels, on arrays that are as strict
as CuPy's. What mixes them with arrays of this process, or takes them for such, fails here as it
would there."""

from types import SimpleNamespace

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from scaledsgd.core.factors import Factors
from scaledsgd.core.observations import Chunk
from scaledsgd.engines.base import Samples
from scaledsgd.engines.cpu.engine import CpuEngine
from scaledsgd.engines.cuda import engine as cuda


class DeviceArray(NDArrayOperatorsMixin):
    """An array that lies elsewhere: NumPy's functions of it give others, and `get` alone brings it
    here."""

    def __init__(self, held: np.ndarray):
        self.held = held

    def __array__(self, dtype=None, copy=None):
        raise TypeError("an array of the device is not turned into one of this process unasked")

    def __array_ufunc__(self, ufunc, method, *given, out=(), **how):
        if out:
            how["out"] = tuple(map(there, out))
        return back(getattr(ufunc, method)(*map(there, given), **how))

    def __array_function__(self, function, types, given, how):
        return back(function(*map(there, given), **{name: there(v) for name, v in how.items()}))

    def __getitem__(self, at):
        return back(self.held[there(at)])

    def __setitem__(self, at, value):
        self.held[there(at)] = there(value)

    def __len__(self):
        return len(self.held)

    def __bool__(self):
        return bool(self.held)

    def __float__(self):
        return float(self.held)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.held, name)
        return (
            (lambda *a, **k: back(found(*map(there, a), **k))) if callable(found) else back(found)
        )

    def get(self) -> np.ndarray:
        return self.held.copy()


def there(value):
    """What the device computes with."""
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError("an array of this process among those of the device")
    if isinstance(value, list | tuple):
        return type(value)(map(there, value))
    return value.held if isinstance(value, DeviceArray) else value


def back(value):
    if isinstance(value, tuple):
        return tuple(map(back, value))
    return DeviceArray(value) if isinstance(value, np.ndarray | np.generic) else value


def sent(array, dtype=None):
    array = array.held if isinstance(array, DeviceArray) else np.asarray(array)
    return DeviceArray(np.array(array, dtype or array.dtype))


cupy = SimpleNamespace(
    ndarray=DeviceArray, asarray=sent, array=sent,
    zeros=lambda *shape: DeviceArray(np.zeros(*shape)),
    ascontiguousarray=lambda X: DeviceArray(np.ascontiguousarray(X.held)),
    bincount=lambda x, weights=None, minlength=0: np.bincount(x, weights, minlength),
    flatnonzero=np.flatnonzero,
)  # fmt: skip


class DeviceSamples(Samples):
    """A training copy on the device."""

    def __init__(self, index: np.ndarray, targets: np.ndarray, rng):
        order = rng.permutation(len(targets))
        self.index, self.targets = DeviceArray(index[order]), DeviceArray(targets[order])

    def __len__(self):
        return len(self.targets)

    def epoch(self, rng):
        order = DeviceArray(rng.permutation(len(self)))
        yield Chunk(self.index[order], self.targets[order])


class StandIn(cuda.CudaEngine):
    """Kernels are the CPU's, on copies."""

    def __init__(self, n_jobs: int = 1):
        self.in_flight = self.memory = None
        self._host, self._kernels, self.repairs = CpuEngine(n_jobs), CpuEngine(), 0

    def _room(self):
        return 1 << 40

    def samples(self, observations, shift, dtype, rng):
        y = observations.targets
        dtype = np.result_type(dtype, np.complex64) if np.iscomplexobj(y) else dtype
        return DeviceSamples(observations.index + np.array(shift), y.astype(dtype), rng)

    def run(self, factors, P, rates, loss, samples, cap=np.inf):
        X = self._kernels.put(self._laid_out(factors).held.copy())
        chunk = Chunk(there(samples.index), there(samples.targets))
        squares = self._kernels.run(Factors(X), P, rates, loss, chunk, cap)
        factors.X.held[...] = X
        return squares

    def scores(self, factors, index, loss):
        X = factors.X if isinstance(factors.X, np.ndarray) else factors.X.held
        here = isinstance(index, np.ndarray)
        z = self._kernels.scores(Factors(X.copy()), index if here else index.held, loss)
        return z if here else DeviceArray(z)

    def gram(self, X, exact=True):
        return self._kernels.gram(X.held, exact)

    def transform(self, X, T):
        self._kernels.transform(X.held, T)

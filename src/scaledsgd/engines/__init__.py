"""Who runs the samples of a round: threads here, a GPU, or workers on a cluster.

Some of it needs names that the authors of Numba, llvmlite and Ray do not promise to keep. Each is
used in one file only, and a test holds this list against the source:

| name | file | why |
|---|---|---|
| `llvmlite` | cpu/llvm.py | instructions and types of registers, which Numba does not have |
| `numba.core` | cpu/llvm.py | `cgutils`: tuples as values, LLVM's own functions, memcpy |
| `numba.config` | cpu/llvm.py | which instructions the kernels are compiled for |
| `PrimitiveModel` | cpu/llvm.py | a register's numbers are one value to Numba |
| `_set_uuid` | cpu/llvm.py | intrinsics are the same in every process, for Numba's disk cache |
| `make_array` | cpu/llvm.py | of a lowering context: where the items of an array lie |
| `make_tuple` | cpu/llvm.py | two sums are returned at once |
| `get_dummy_value` | cpu/llvm.py | what an intrinsic returns that returns nothing |
| `get_data_type` | cpu/llvm.py | LLVM's type of an item |
| `get_abi_sizeof` | cpu/llvm.py | bytes of an item |
| `_cache_file` | ../core/compiled.py | files of the cache are named by what is in them ... |
| `_source_stamp` | ../core/compiled.py | ... which is a form of this source ... |
| `_index_name` | ../core/compiled.py | ... of a function that the index is named after ... |
| `_dump` | ../core/compiled.py | ... as bytes |
| `_save_data` | ../core/compiled.py | such a file is written ... |
| `_save_index` | ../core/compiled.py | ... before the index names it ... |
| `_load_index` | ../core/compiled.py | ... beside the others |
| `cache_path` | ../cli/doctor.py | where compiled kernels are kept |
| `RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER` | cluster/worker_pool.py | "0": only loopback listens |
| `RAY_free_objects_batch_size` | cluster/worker_pool.py | blocks that were replaced ... |
| `RAY_free_objects_period_milliseconds` | cluster/worker_pool.py | ... go at once |
| `RAY_AUTH_MODE` | cluster/worker_pool.py | a cluster of ours asks for a token ... |
| `RAY_AUTH_TOKEN` | cluster/worker_pool.py | ... which only this process knows |
| `RAY_TMPDIR` | cluster/worker_pool.py | the folder of the next |
| `ray_current_cluster` | cluster/worker_pool.py | where `ray start` leaves its address |
| `why.cause` | cluster/worker_pool.py | of a RayTaskError: the error that the worker met |
"""

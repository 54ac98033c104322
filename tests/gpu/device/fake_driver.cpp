// A fake `libcuda.so.1` that implements the driver calls of `src/sys/cuda` on machines without a
// GPU. It follows the driver's manual, keeps all memory on the host, and is as strict as the manual
// allows.
//
// - A stream is a thread. A copy or kernel whose memory was freed aborts the process.
// - Freeing memory waits for all streams, as the manual permits.
// - Environment variables enable behavior observed on real drivers. Each is described where it is
//   read: STRICT=1 (with QMAX), CHANNELS=one or CHANNELS=priority, NO_IPC, POOLS.
// - Other variables detect errors of the library or make calls fail: ONE_THREAD (only the first
//   thread may enter the driver), LIBRARY_QUEUE_MAX (maximum number of entries in a stream of the
//   highest priority; the library's streams have that priority), STRANGE_CODE (the result of
//   cuMemAlloc), FAIL_FROM=n and FAIL_RANK (nothing is enqueued from the n-th entry of that rank's
//   library on), PINNED_MAX (bytes of host memory that can be pinned).
// - A copy of this library in a directory called `stubs` acts like a toolkit's stub for the linker:
//   it has all symbols, but none of them works.
// - Calls that need a current context fail without one.
// - There are three GPUs, or the first VISIBLE_GPUS of them. The first two can access each other's
//   memory after it is exported and mapped. An access to memory that is not mapped for the GPU
//   aborts the process. A mapping remains valid after its owner exits.
// - Kernels are `cuda/reduce.cu`, run on the CPU.
#define main kernels_on_a_cpu
#include "../../../cuda/host.cpp"
#undef main

#include <atomic>
#include <condition_variable>
#include <deque>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <sys/syscall.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

using Result = int;
enum : Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    STUB_LIBRARY = 34,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    PEER_ACCESS_UNSUPPORTED = 217,
    UNKNOWN = 999,
};

static const u64 MEMORY_BYTES = u64(4) << 30;
static const int GPUS = 3;
static const int FIRST_DEVICE = 7;
static bool can_access(int gpu, int peer) { return gpu != peer && gpu < 2 && peer < 2; }

[[noreturn]] static void die(const char *why) {
    std::fprintf(stderr, "fake driver: %s\n", why);
    std::abort();
}

// ---- contexts ----

static char primaries[GPUS];
static thread_local std::vector<void *> current;

// Returns the GPU of a context, or -1.
static int gpu_of(const void *context) {
    for (int gpu = 0; gpu < GPUS; gpu++) {
        if (context == &primaries[gpu]) return gpu;
    }
    return -1;
}

// ONE_THREAD: Only the thread that initialized the driver may enter it.
static std::atomic<long> first_thread{0};
static int current_gpu() {
    static const bool IS_ONE = std::getenv("ONE_THREAD") != nullptr;
    if (IS_ONE && first_thread != syscall(SYS_gettid)) die("another thread entered the driver");
    return current.empty() ? -1 : gpu_of(current.back());
}

#define NEEDS_CONTEXT                                                                            \
    if (current_gpu() < 0) return INVALID_CONTEXT

// ---- memory ----

struct Block {
    u64 bytes;
    // The GPU whose context can access the memory.
    int gpu;
    // Set if cuMemMap mapped it.
    bool is_mapped;
};

// Creates an object that is never destroyed. The threads of the streams still run while the
// program's last thread exits, so everything that they use must outlive them.
template <typename T> static T &forever() {
    return *new T;
}

static std::mutex memory_lock;
static auto &device_blocks = forever<std::map<u64, Block>>();
static auto &host_blocks = forever<std::map<u64, u64>>();
static auto &registered = forever<std::map<u64, u64>>();
static u64 taken;

template <class Map> static bool holds(const Map &map, u64 address, u64 bytes, u64 (*length)(const typename Map::mapped_type &)) {
    auto after = map.upper_bound(address);
    if (after == map.begin()) return false;
    --after;
    return address + bytes <= after->first + length(after->second);
}

static bool is_device(u64 address, u64 bytes, int gpu) {
    std::lock_guard<std::mutex> guard(memory_lock);
    auto after = device_blocks.upper_bound(address);
    if (after == device_blocks.begin()) return false;
    const auto &[start, block] = *--after;
    return block.gpu == gpu && address + bytes <= start + block.bytes;
}

static bool is_host(u64 address, u64 bytes) {
    std::lock_guard<std::mutex> guard(memory_lock);
    return holds(host_blocks, address, bytes, [](const u64 &length) -> u64 { return length; });
}

// Returns whether a stream can access a word at this address, because the memory is registered or
// pinned.
static bool is_registered(u64 address) {
    if (is_host(address, 4)) return true;
    std::lock_guard<std::mutex> guard(memory_lock);
    return holds(registered, address, 4, [](const u64 &length) -> u64 { return length; });
}

// ---- streams and events ----

struct Stream {
    int gpu;
    // Set for the highest priority, which the library's own streams have.
    bool is_librarys = false;
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> orders;
    bool is_busy = false;
    bool is_destroyed = false;
};

static std::mutex streams_lock;
static auto &streams = forever<std::vector<std::shared_ptr<Stream>>>();
static void work(std::shared_ptr<Stream> stream) {
    u32 pause = 1;
    for (;;) {
        std::function<void()> order;
        {
            std::unique_lock<std::mutex> guard(stream->lock);
            stream->is_busy = false;
            stream->changed.notify_all();
            stream->changed.wait(guard, [&] { return !stream->orders.empty() || stream->is_destroyed; });
            if (stream->orders.empty()) return;
            order = std::move(stream->orders.front());
            stream->orders.pop_front();
            stream->is_busy = true;
            stream->changed.notify_all();
        }
        pause = pause * 1664525 + 1013904223;
        if (pause >> 30 == 0) usleep(pause >> 22 & 0xff);
        order();
    }
}

// With CHANNELS=one, all streams of a GPU share one queue. With CHANNELS=priority, all streams of
// one priority do.
static auto &handles = forever<std::map<void *, std::shared_ptr<Stream>>>();
static auto &channels = forever<std::map<std::pair<int, int>, std::shared_ptr<Stream>>>();
static std::shared_ptr<Stream> known(void *handle) {
    std::lock_guard<std::mutex> guard(streams_lock);
    auto shared = handles.find(handle);
    if (shared != handles.end()) return shared->second;
    for (auto &stream : streams) {
        if (stream.get() == handle) return stream;
    }
    return nullptr;
}

// --- STRICT: behavior observed on real drivers --------------------------------------------------
// Calls share the context's lock. A call that waits for the GPU inside the driver holds it
// exclusively.
static std::shared_mutex context_lock;
static const bool STRICT = std::getenv("STRICT") != nullptr;
static const size_t QUEUE_MAX = std::getenv("QMAX") ? std::atoi(std::getenv("QMAX")) : 1000;
struct Shared {
    std::shared_lock<std::shared_mutex> held;
    Shared() : held(context_lock, std::defer_lock) { if (STRICT) held.lock(); }
};
struct Alone {
    std::unique_lock<std::shared_mutex> held;
    Alone() : held(context_lock, std::defer_lock) { if (STRICT) held.lock(); }
};

// FAIL_FROM: Returns whether to reject the library's entry that is being enqueued.
static bool is_failing() {
    static const char *const FROM = std::getenv("FAIL_FROM"), *const OF = std::getenv("FAIL_RANK"), *const RANK = std::getenv("RANK");
    static std::atomic<long> enqueued{0};
    return FROM && OF && RANK && std::string(OF) == RANK && ++enqueued >= std::atol(FROM);
}

static Result enqueue(void *handle, std::function<void()> order) {
    NEEDS_CONTEXT;
    auto stream = known(handle);
    if (!stream || stream->gpu != current_gpu()) return INVALID_HANDLE;
    {
        Shared shared;
        std::lock_guard<std::mutex> guard(stream->lock);
        static const char *const LIBRARY_MAX = std::getenv("LIBRARY_QUEUE_MAX");
        if (LIBRARY_MAX && stream->is_librarys && stream->orders.size() > std::strtoul(LIBRARY_MAX, nullptr, 10)) {
            die("the library enqueued too many entries");
        }
        if (stream->is_librarys && is_failing()) return UNKNOWN;
        if (!STRICT || stream->orders.size() < QUEUE_MAX) {
            stream->orders.push_back(std::move(order));
            stream->changed.notify_all();
            return SUCCESS;
        }
    }
    // The stream's queue is full. The call waits for space and blocks all callers that need the
    // context.
    Alone alone;
    std::unique_lock<std::mutex> guard(stream->lock);
    stream->changed.wait(guard, [&] { return stream->orders.size() < QUEUE_MAX; });
    stream->orders.push_back(std::move(order));
    stream->changed.notify_all();
    return SUCCESS;
}

static void wait_for(const std::shared_ptr<Stream> &stream) {
    std::unique_lock<std::mutex> guard(stream->lock);
    stream->changed.wait(guard, [&] { return stream->orders.empty() && !stream->is_busy; });
}

// Waits for all streams, including destroyed streams that still have work.
static void wait_for_everything() {
    std::vector<std::shared_ptr<Stream>> all;
    {
        std::lock_guard<std::mutex> guard(streams_lock);
        all = streams;
    }
    for (auto &stream : all) wait_for(stream);
}

struct Point {
    std::mutex lock;
    std::condition_variable reached;
    bool is_reached = false;
};

struct Event {
    std::mutex lock;
    std::shared_ptr<Point> latest;
};

static std::mutex events_lock;
static auto &events = forever<std::map<void *, std::shared_ptr<Event>>>();

static std::shared_ptr<Event> known_event(void *handle) {
    std::lock_guard<std::mutex> guard(events_lock);
    auto found = events.find(handle);
    return found == events.end() ? nullptr : found->second;
}

// ---- kernels ----

static std::mutex kernel_lock;

static void run_kernel(const Kernel &kernel, const Arguments &arguments, u64 threads, int gpu) {
    std::lock_guard<std::mutex> guard(kernel_lock);
    begin(kernel, arguments, threads);
    for (auto *ranges : {&launch.readable, &launch.writable}) {
        for (const Range &range : *ranges) {
            if (!is_device(range.start, range.end - range.start, gpu)) die("a kernel's memory was freed or is not accessible");
        }
    }
    for (launch.thread = 0; launch.thread < threads; launch.thread++) kernel.call(arguments);
}

// ---- capture ----

static std::atomic<void *> captured{nullptr};
static std::atomic<long> capturing_thread{0};
static std::atomic<bool> is_invalidated{false};
static thread_local int capture_mode = 0; // GLOBAL
// Returns whether a call that the manual describes as potentially unsafe is prohibited. It is
// prohibited in threads of mode GLOBAL while any capture of that mode is in progress.
static bool is_prohibited() {
    if (!captured || capture_mode == 2) return false;
    if (capture_mode == 1 && capturing_thread != syscall(SYS_gettid)) return false;
    return is_invalidated = true;
}
// ---- the driver's calls ----

extern "C" {

Result cuInit(unsigned) {
    Dl_info own;
    if (dladdr(reinterpret_cast<void *>(&cuInit), &own) && std::strstr(own.dli_fname, "/stubs/")) return STUB_LIBRARY;
    long none = 0;
    first_thread.compare_exchange_strong(none, syscall(SYS_gettid));
    return SUCCESS;
}
Result cuDriverGetVersion(int *version) { return *version = 12040, SUCCESS; }
Result cuDeviceGetCount(int *count) {
    const char *visible = std::getenv("VISIBLE_GPUS");
    return *count = visible ? std::atoi(visible) : GPUS, SUCCESS;
}
Result cuDeviceGet(int *device, int ordinal) {
    return *device = FIRST_DEVICE + ordinal, ordinal >= 0 && ordinal < GPUS ? SUCCESS : INVALID_VALUE;
}
Result cuDeviceGetName(char *name, int, int) { return std::strcpy(name, "a fake GPU"), SUCCESS; }
Result cuDeviceGetUuid_v2(char *uuid, int device) {
    std::memcpy(uuid, "fake driver UUID", 16);
    return uuid[15] += device - FIRST_DEVICE, SUCCESS;
}
Result cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = MEMORY_BYTES, SUCCESS; }
// POOLS: memory pools exist, as on real GPUs. cudarc then allocates its slices from them.
Result cuDeviceGetAttribute(int *value, int which, int) {
    static const bool HAS_POOLS = std::getenv("POOLS") != nullptr;
    return *value = which == 115 ? HAS_POOLS : 2, SUCCESS;
}
Result cuDevicePrimaryCtxRetain(void **context, int device) {
    return *context = &primaries[device - FIRST_DEVICE], SUCCESS;
}

Result cuGetErrorString(Result code, const char **text) {
    *text = code == OUT_OF_MEMORY ? "out of memory" : "some error";
    return SUCCESS;
}

Result cuCtxGetCurrent(void **context) {
    *context = current.empty() ? nullptr : current.back();
    return SUCCESS;
}

Result cuCtxPushCurrent_v2(void *context) { return current.push_back(context), SUCCESS; }

Result cuCtxSetCurrent(void *context) {
    if (!current.empty()) current.pop_back();
    return current.push_back(context), SUCCESS;
}

Result cuCtxSynchronize() {
    NEEDS_CONTEXT;
    return wait_for_everything(), SUCCESS;
}

Result cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }

Result cuCtxPopCurrent_v2(void **context) {
    if (current.empty()) return INVALID_CONTEXT;
    *context = current.back();
    current.pop_back();
    return SUCCESS;
}

static Result allocate(u64 *address, size_t bytes) {
    if (bytes == 0) return INVALID_VALUE;
    std::lock_guard<std::mutex> guard(memory_lock);
    if (bytes > MEMORY_BYTES - taken) return OUT_OF_MEMORY;
    void *start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return OUT_OF_MEMORY;
    // Fill the memory with stale content.
    std::memset(start, 0xa5, std::min(bytes, size_t(1) << 20));
    *address = reinterpret_cast<u64>(start);
    device_blocks[*address] = {bytes, current_gpu(), false};
    taken += bytes;
    return SUCCESS;
}

Result cuMemAlloc_v2(u64 *address, size_t bytes) {
    NEEDS_CONTEXT;
    if (is_prohibited()) return 900;
    if (const char *code = std::getenv("STRANGE_CODE")) return std::atoi(code);
    Alone alone;
    return allocate(address, bytes);
}

static void erase(u64 address, bool is_mapped, int gpu) {
    std::lock_guard<std::mutex> guard(memory_lock);
    auto found = device_blocks.find(address);
    if (found == device_blocks.end() || found->second.is_mapped != is_mapped) die("the freed memory is not allocated");
    if (found->second.gpu != gpu) die("the freed memory belongs to another GPU");
    // Any later access aborts the process.
    mmap(reinterpret_cast<void *>(address), found->second.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (!is_mapped) taken -= found->second.bytes;
    device_blocks.erase(found);
}

// Forgets memory that is no longer used.
static Result forget(u64 address, bool is_mapped) {
    NEEDS_CONTEXT;
    if (is_prohibited()) return 900;
    Alone alone;
    wait_for_everything();
    return erase(address, is_mapped, current_gpu()), SUCCESS;
}

Result cuMemFree_v2(u64 address) { return forget(address, false); }

// Allocates from a pool, in stream order. Neither this call nor cuMemFreeAsync waits.
Result cuMemAllocAsync(u64 *address, size_t bytes, void *stream) {
    NEEDS_CONTEXT;
    return known(stream) ? allocate(address, bytes) : INVALID_HANDLE;
}
Result cuMemFreeAsync(u64 address, void *stream) {
    const int gpu = current_gpu();
    return enqueue(stream, [=] { erase(address, false, gpu); });
}

// Memory that can be mapped: a file with a description after the memory.
struct Physical {
    u64 mark;
    u64 bytes;
    int gpu;
    int file;
};
static const u64 PHYSICAL_MAGIC = 0x70726574656e6473;
static const u64 GRANULARITY = 2 << 20;
static auto &physicals = forever<std::map<u64, Physical>>();
static u64 last_physical = 1000;
// Reserved addresses and the handle mapped at each; 0 if nothing is mapped.
static auto &reserved = forever<std::map<u64, std::pair<u64, u64>>>();

struct Location {
    int kind;
    int id;
};
struct Properties {
    int kind;
    int handles;
    Location location;
    void *windows;
    u8 flags[8];
};
struct MemoryAccess {
    Location location;
    int flags;
};

static bool is_sound(const Properties *properties) {
    const int gpu = properties->location.id - FIRST_DEVICE;
    const u8 none[8] = {};
    return properties->kind == 1 && properties->handles == 1 && properties->location.kind == 1 && gpu >= 0 &&
           gpu < GPUS && !properties->windows && std::memcmp(properties->flags, none, 8) == 0;
}

static u64 keep(const Physical &physical) {
    physicals[++last_physical] = physical;
    return last_physical;
}

Result cuMemGetAllocationGranularity(size_t *bytes, const Properties *properties, int) {
    NEEDS_CONTEXT;
    return *bytes = GRANULARITY, is_sound(properties) ? SUCCESS : INVALID_VALUE;
}

Result cuMemCreate(u64 *handle, size_t bytes, const Properties *properties, u64 flags) {
    NEEDS_CONTEXT;
    if (is_prohibited()) return 900;
    if (!is_sound(properties) || flags != 0 || bytes == 0 || bytes % GRANULARITY != 0) return INVALID_VALUE;
    Alone alone;
    std::lock_guard<std::mutex> guard(memory_lock);
    const int file = memfd_create("fake GPU", MFD_CLOEXEC);
    const Physical physical = {PHYSICAL_MAGIC, bytes, properties->location.id - FIRST_DEVICE, file};
    if (file < 0 || pwrite(file, &physical, sizeof(physical), bytes) != sizeof(physical)) return OUT_OF_MEMORY;
    return *handle = keep(physical), SUCCESS;
}

Result cuMemExportToShareableHandle(int *number, u64 handle, int kind, u64 flags) {
    NEEDS_CONTEXT;
    // A container that lacks the required capability returns this error.
    if (std::getenv("NO_IPC")) return 801;
    std::lock_guard<std::mutex> guard(memory_lock);
    auto found = physicals.find(handle);
    if (found == physicals.end() || kind != 1 || flags != 0) return INVALID_VALUE;
    return *number = fcntl(found->second.file, F_DUPFD_CLOEXEC, 0), *number < 0 ? OUT_OF_MEMORY : SUCCESS;
}

Result cuMemImportFromShareableHandle(u64 *handle, void *number, int kind) {
    NEEDS_CONTEXT;
    if (is_prohibited()) return 900;
    Physical physical = {};
    const int file = fcntl(int(reinterpret_cast<u64>(number)), F_DUPFD_CLOEXEC, 0);
    struct stat found;
    if (kind != 1 || file < 0 || fstat(file, &found) != 0) return INVALID_VALUE;
    const off_t at = found.st_size - off_t(sizeof(physical));
    if (pread(file, &physical, sizeof(physical), at) != sizeof(physical) || physical.mark != PHYSICAL_MAGIC) return INVALID_VALUE;
    physical.file = file;
    std::lock_guard<std::mutex> guard(memory_lock);
    return *handle = keep(physical), SUCCESS;
}

// Mappings of the memory keep it alive.
Result cuMemRelease(u64 handle) {
    NEEDS_CONTEXT;
    std::lock_guard<std::mutex> guard(memory_lock);
    auto found = physicals.find(handle);
    if (found == physicals.end()) die("the released handle does not exist");
    close(found->second.file);
    physicals.erase(found);
    return SUCCESS;
}

Result cuMemAddressReserve(u64 *address, size_t bytes, size_t alignment, u64 wanted, u64 flags) {
    NEEDS_CONTEXT;
    if (bytes == 0 || bytes % GRANULARITY != 0 || alignment != 0 || wanted != 0 || flags != 0) return INVALID_VALUE;
    void *start = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return OUT_OF_MEMORY;
    std::lock_guard<std::mutex> guard(memory_lock);
    *address = reinterpret_cast<u64>(start);
    reserved[*address] = {bytes, 0};
    return SUCCESS;
}

Result cuMemAddressFree(u64 address, size_t bytes) {
    NEEDS_CONTEXT;
    std::lock_guard<std::mutex> guard(memory_lock);
    auto found = reserved.find(address);
    if (found == reserved.end() || found->second.first != bytes || found->second.second != 0) die("the address range is not reserved or is still mapped");
    munmap(reinterpret_cast<void *>(address), bytes);
    reserved.erase(found);
    return SUCCESS;
}

Result cuMemMap(u64 address, size_t bytes, size_t offset, u64 handle, u64 flags) {
    NEEDS_CONTEXT;
    if (is_prohibited()) return 900;
    std::lock_guard<std::mutex> guard(memory_lock);
    auto place = reserved.find(address);
    auto found = physicals.find(handle);
    if (place == reserved.end() || found == physicals.end() || offset != 0 || flags != 0) return INVALID_VALUE;
    if (bytes > found->second.bytes || bytes != place->second.first || place->second.second != 0) return INVALID_VALUE;
    void *start = reinterpret_cast<void *>(address);
    if (mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, found->second.file, 0) == MAP_FAILED) return OUT_OF_MEMORY;
    place->second.second = handle;
    // No GPU can access the memory until cuMemSetAccess is called.
    device_blocks[address] = {bytes, -1, true};
    return SUCCESS;
}

Result cuMemSetAccess(u64 address, size_t bytes, const MemoryAccess *access, size_t count) {
    NEEDS_CONTEXT;
    std::lock_guard<std::mutex> guard(memory_lock);
    auto place = reserved.find(address);
    if (place == reserved.end() || count != 1 || bytes != place->second.first) return INVALID_VALUE;
    auto found = physicals.find(place->second.second);
    const int gpu = access->location.id - FIRST_DEVICE;
    if (found == physicals.end() || access->location.kind != 1 || access->flags != 3) return INVALID_VALUE;
    if (gpu != found->second.gpu && !can_access(gpu, found->second.gpu)) return PEER_ACCESS_UNSUPPORTED;
    return device_blocks[address].gpu = gpu, SUCCESS;
}

Result cuMemUnmap(u64 address, size_t bytes) {
    {
        std::lock_guard<std::mutex> guard(memory_lock);
        auto place = reserved.find(address);
        if (place == reserved.end() || place->second.first != bytes || place->second.second == 0) return INVALID_VALUE;
        place->second.second = 0;
        if (device_blocks[address].gpu < 0) device_blocks[address].gpu = current_gpu();
    }
    return forget(address, true);
}

Result cuMemHostAlloc(void **start, size_t bytes, unsigned) {
    NEEDS_CONTEXT;
    if (is_prohibited()) return 900;
    static const char *const PINNED_MAX = std::getenv("PINNED_MAX");
    static std::atomic<u64> pinned{0};
    if ((pinned += bytes) > (PINNED_MAX ? std::strtoull(PINNED_MAX, nullptr, 10) : u64(-1))) return OUT_OF_MEMORY;
    Alone alone;
    *start = std::malloc(bytes);
    std::memset(*start, 0xa5, bytes);
    std::lock_guard<std::mutex> guard(memory_lock);
    host_blocks[reinterpret_cast<u64>(*start)] = bytes;
    return SUCCESS;
}

Result cuMemFreeHost(void *start) {
    NEEDS_CONTEXT;
    wait_for_everything();
    std::lock_guard<std::mutex> guard(memory_lock);
    if (host_blocks.erase(reinterpret_cast<u64>(start)) != 1) die("the freed memory is not allocated");
    return std::free(start), SUCCESS;
}

Result cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) {
    NEEDS_CONTEXT;
    const u64 address = reinterpret_cast<u64>(start);
    if (address % 4096 != 0 || bytes % 4096 != 0 || flags != 3) return INVALID_VALUE;
    std::lock_guard<std::mutex> guard(memory_lock);
    registered[address] = bytes;
    return SUCCESS;
}

Result cuMemHostUnregister(void *start) {
    NEEDS_CONTEXT;
    wait_for_everything();
    std::lock_guard<std::mutex> guard(memory_lock);
    if (registered.erase(reinterpret_cast<u64>(start)) != 1) die("the unregistered memory is not registered");
    return SUCCESS;
}

Result cuMemHostGetDevicePointer_v2(u64 *address, void *start, unsigned) {
    NEEDS_CONTEXT;
    return *address = reinterpret_cast<u64>(start), SUCCESS;
}

Result cuCtxGetStreamPriorityRange(int *lowest, int *highest) {
    NEEDS_CONTEXT;
    *lowest = 0, *highest = -5;
    return SUCCESS;
}

Result cuStreamCreateWithPriority(void **handle, unsigned flags, int priority) {
    NEEDS_CONTEXT;
    if (flags != 1 || priority > 0 || priority < -5) return INVALID_VALUE;
    auto stream = std::make_shared<Stream>();
    stream->gpu = current_gpu();
    stream->is_librarys = priority == -5;
    std::lock_guard<std::mutex> guard(streams_lock);
    if (const char *how = std::getenv("CHANNELS")) {
        auto &channel = channels[{stream->gpu, std::string(how) == "one" ? 0 : priority}];
        if (!channel) {
            channel = stream;
            streams.push_back(stream);
            std::thread(work, stream).detach();
        }
        *handle = new char;
        handles[*handle] = channel;
        return SUCCESS;
    }
    streams.push_back(stream);
    std::thread(work, stream).detach();
    return *handle = stream.get(), SUCCESS;
}

Result cuStreamCreate(void **handle, unsigned flags) {
    return cuStreamCreateWithPriority(handle, flags, 0);
}

Result cuStreamDestroy_v2(void *handle) {
    NEEDS_CONTEXT;
    auto stream = known(handle);
    if (!stream) return INVALID_HANDLE;
    if (std::getenv("CHANNELS")) return SUCCESS;
    std::lock_guard<std::mutex> guard(stream->lock);
    if (stream->is_destroyed) die("a stream is destroyed twice");
    stream->is_destroyed = true;
    stream->changed.notify_all();
    return SUCCESS;
}

Result cuStreamSynchronize(void *handle) {
    NEEDS_CONTEXT;
    auto stream = known(handle);
    if (!stream) return INVALID_HANDLE;
    if (std::getenv("CHANNELS")) {
        auto done = std::make_shared<std::atomic<bool>>(false);
        const Result result = enqueue(handle, [done] { *done = true; });
        while (result == SUCCESS && !*done) usleep(50);
        return result;
    }
    return wait_for(stream), SUCCESS;
}

Result cuThreadExchangeStreamCaptureMode(int *mode) { std::swap(*mode, capture_mode); return SUCCESS; }
Result cuStreamBeginCapture_v2(void *stream, int) {
    NEEDS_CONTEXT;
    is_invalidated = false;
    capturing_thread = syscall(SYS_gettid);
    return captured = stream, SUCCESS;
}
Result cuStreamEndCapture(void *, void **graph) {
    *graph = nullptr;
    captured = nullptr;
    return is_invalidated ? 901 : SUCCESS;
}
Result cuStreamIsCapturing(void *stream, int *status) {
    NEEDS_CONTEXT;
    return *status = captured && captured == stream, SUCCESS;
}

Result cuEventCreate(void **handle, unsigned flags) {
    NEEDS_CONTEXT;
    if (flags != 2) return INVALID_VALUE;
    auto event = std::make_shared<Event>();
    std::lock_guard<std::mutex> guard(events_lock);
    events[event.get()] = event;
    return *handle = event.get(), SUCCESS;
}

Result cuEventDestroy_v2(void *handle) {
    NEEDS_CONTEXT;
    std::lock_guard<std::mutex> guard(events_lock);
    if (events.erase(handle) != 1) die("an event is destroyed twice");
    return SUCCESS;
}

Result cuEventRecord(void *handle, void *stream) {
    auto event = known_event(handle);
    if (!event) return INVALID_HANDLE;
    auto point = std::make_shared<Point>();
    std::lock_guard<std::mutex> guard(event->lock);
    event->latest = point;
    return enqueue(stream, [point] {
        std::lock_guard<std::mutex> inner(point->lock);
        point->is_reached = true;
        point->reached.notify_all();
    });
}

Result cuEventQuery(void *handle) {
    NEEDS_CONTEXT;
    if (is_prohibited()) return 900;
    Shared shared;
    auto event = known_event(handle);
    if (!event) return INVALID_HANDLE;
    std::lock_guard<std::mutex> guard(event->lock);
    if (!event->latest) return SUCCESS;
    std::lock_guard<std::mutex> inner(event->latest->lock);
    return event->latest->is_reached ? SUCCESS : NOT_READY;
}

Result cuStreamWaitEvent(void *stream, void *handle, unsigned flags) {
    auto event = known_event(handle);
    if (!event || flags != 0) return INVALID_HANDLE;
    std::lock_guard<std::mutex> guard(event->lock);
    auto point = event->latest;
    return enqueue(stream, [point] {
        if (!point) return;
        std::unique_lock<std::mutex> inner(point->lock);
        point->reached.wait(inner, [&] { return point->is_reached; });
    });
}

Result cuStreamWaitValue32_v2(void *stream, u64 address, u32 value, unsigned flags) {
    if (flags != 0 || !is_registered(address)) return INVALID_VALUE;
    return enqueue(stream, [=] {
        auto *word = reinterpret_cast<std::atomic<u32> *>(address);
        for (;;) {
            if (!is_registered(address)) die("a stream waits for a word that was unregistered");
            if (i32(word->load() - value) >= 0) break;
            usleep(50);
        }
    });
}

Result cuStreamWriteValue32_v2(void *stream, u64 address, u32 value, unsigned flags) {
    if (flags != 0 || !is_registered(address)) return INVALID_VALUE;
    return enqueue(stream, [=] {
        if (!is_registered(address)) die("a stream writes a word that was unregistered");
        reinterpret_cast<std::atomic<u32> *>(address)->store(value);
    });
}

static Result copy(u64 to, bool to_host, u64 from, bool from_host, size_t bytes, void *stream) {
    auto its = known(stream);
    if (bytes == 0 || !its) return INVALID_VALUE;
    const int gpu = its->gpu;
    // Host memory that is not pinned is copied before the call returns.
    if (from_host && !is_host(from, bytes)) {
        const auto *start = reinterpret_cast<const u8 *>(from);
        const std::vector<u8> copied(start, start + bytes);
        return enqueue(stream, [=] {
            if (!is_device(to, bytes, gpu)) die("a copy's memory was freed");
            std::memcpy(reinterpret_cast<void *>(to), copied.data(), bytes);
        });
    }
    if (to_host && !is_host(to, bytes)) {
        const Result result = enqueue(stream, [=] {
            if (!is_device(from, bytes, gpu)) die("a copy's memory was freed");
            std::memcpy(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), bytes);
        });
        if (result != SUCCESS) return result;
        Alone alone;
        return wait_for(its), SUCCESS;
    }
    return enqueue(stream, [=] {
        const auto is_there = [=](u64 start, bool on_host) { return on_host ? is_host(start, bytes) : is_device(start, bytes, gpu); };
        if (!is_there(to, to_host) || !is_there(from, from_host)) die("a copy's memory was freed or never allocated");
        std::memcpy(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), bytes);
    });
}

Result cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, void *stream) {
    return copy(to, false, from, false, bytes, stream);
}

Result cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t bytes, void *stream) {
    return copy(reinterpret_cast<u64>(to), true, from, false, bytes, stream);
}

Result cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t bytes, void *stream) {
    return copy(to, false, reinterpret_cast<u64>(from), true, bytes, stream);
}

Result cuMemsetD8Async(u64 to, u8 value, size_t bytes, void *stream) {
    auto its = known(stream);
    if (!its) return INVALID_HANDLE;
    if (bytes == 0) return INVALID_VALUE;
    const int gpu = its->gpu;
    return enqueue(stream, [=] {
        if (!is_device(to, bytes, gpu)) die("the memory of a memset was freed");
        std::memset(reinterpret_cast<void *>(to), value, bytes);
    });
}

struct Copy2D {
    size_t from_x, from_y;
    unsigned from_kind;
    const void *from_host;
    u64 from_device;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    unsigned to_kind;
    void *to_host;
    u64 to_device;
    void *to_array;
    size_t to_pitch;
    size_t width, height;
};

// Copies between pinned memory (kind 1) and device memory (kind 2), row by row.
Result cuMemcpy2DAsync_v2(const Copy2D *given, void *stream) {
    const Copy2D rows = *given;
    const bool to_host = rows.to_kind == 1;
    auto its = known(stream);
    if (!its || rows.width == 0 || rows.from_kind + rows.to_kind != 3) return INVALID_VALUE;
    if (rows.from_pitch < rows.width || rows.to_pitch < rows.width) return INVALID_VALUE;
    if (rows.from_pitch > 0x7fffffff || rows.to_pitch > 0x7fffffff) return INVALID_VALUE;
    const u64 from = to_host ? rows.from_device : reinterpret_cast<u64>(rows.from_host);
    const u64 to = to_host ? reinterpret_cast<u64>(rows.to_host) : rows.to_device;
    const int gpu = its->gpu;
    return enqueue(stream, [=] {
        for (size_t row = 0; row < rows.height; row++) {
            const u64 source = from + row * rows.from_pitch, target = to + row * rows.to_pitch;
            const u64 host = to_host ? target : source, device = to_host ? source : target;
            if (!is_host(host, rows.width) || !is_device(device, rows.width, gpu)) die("a copy's memory was freed or never allocated");
            std::memcpy(reinterpret_cast<void *>(target), reinterpret_cast<void *>(source), rows.width);
        }
    });
}

Result cuModuleLoadData(void **module, const void *image) {
    NEEDS_CONTEXT;
    if (is_prohibited()) return 900;
    Alone alone;
    if (STRICT) wait_for_everything();
    return *module = new std::string(static_cast<const char *>(image)), SUCCESS;
}

Result cuModuleGetFunction(void **function, void *module, const char *name) {
    NEEDS_CONTEXT;
    const auto &text = *static_cast<std::string *>(module);
    if (text.find(std::string(".visible .entry ") + name + "(") == std::string::npos) return NOT_FOUND;
    return *function = new std::string(name), SUCCESS;
}

Result cuFuncLoad(void *) {
    NEEDS_CONTEXT;
    return SUCCESS;
}

Result cuLaunchKernel(void *function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments, void **extra) {
    if (y != 1 || z != 1 || block_y != 1 || block_z != 1 || shared != 0 || extra) return INVALID_VALUE;
    const Kernel &kernel = *kernel_named(static_cast<std::string *>(function)->c_str());
    const Arguments copied = *static_cast<const Arguments *>(arguments[0]);
    auto its = known(stream);
    if (!its) return INVALID_HANDLE;
    const int gpu = its->gpu;
    return enqueue(stream, [=, &kernel] { run_kernel(kernel, copied, u64(blocks) * threads, gpu); });
}

} // extern "C"

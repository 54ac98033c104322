// A pretended `libcuda.so.1`, so that the calls of `src/sys/cuda` are made on machines without a GPU:
// what the driver's manual says of each of them, in host memory, as unkindly as it allows.
//
// - A stream is a thread. A copy or kernel that finds its memory freed ends the process.
// - Freeing anything waits for everything, as the manual says it may. If a stream is waiting for a
//   word then, that would be for ever, so it ends the process instead.
// - Calls that need the context current fail without it; so do those of a thread that left it so.
// - There are three GPUs. The first two reach each other's memory, if the context was told to, or
//   opened it; who uses memory that its GPU does not reach ends the process.
// - Who uses or closes a peer's memory that its owner has freed before ends the process.
// - Handles of memory work in other processes only. Kernels are `cuda/reduce.cu` on the CPU.
#define main kernels_on_a_cpu
#include "../../cuda/host.cpp"
#undef main

#include <atomic>
#include <condition_variable>
#include <deque>
#include <fcntl.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
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
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    PEER_ACCESS_UNSUPPORTED = 217,
    PEER_ACCESS_ALREADY_ENABLED = 704,
};

// Behind own memory; its first byte says that the memory was freed.
static const u64 FLAG_BYTES = 4096;
static const u64 MEMORY_BYTES = u64(4) << 30;
static const int GPUS = 3;
static const int FIRST_DEVICE = 7;
static bool can_access(int gpu, int peer) { return gpu != peer && gpu < 2 && peer < 2; }

[[noreturn]] static void die(const char *why) {
    std::fprintf(stderr, "pretended driver: %s\n", why);
    std::abort();
}

// ---- contexts ----

static char primaries[GPUS];
static thread_local std::vector<void *> current;

// The GPU of a context; none is -1.
static int gpu_of(const void *context) {
    for (int gpu = 0; gpu < GPUS; gpu++) {
        if (context == &primaries[gpu]) return gpu;
    }
    return -1;
}

static int current_gpu() { return current.empty() ? -1 : gpu_of(current.back()); }

#define NEEDS_CONTEXT                                                                            \
    if (current_gpu() < 0) return INVALID_CONTEXT

// ---- memory ----

struct Block {
    u64 bytes;
    // Where it lies, or whose context has opened it.
    int gpu;
    int file;
    // How often a peer's memory is open here; 0 for own memory.
    int opened;
    ino_t inode;

    u64 mapped() const { return (bytes + 4095) / 4096 * 4096 + FLAG_BYTES; }
    u8 *flag(u64 start) const { return reinterpret_cast<u8 *>(start) + mapped() - FLAG_BYTES; }

    // Whoever has a peer's memory open finds it there.
    void check(u64 start) const {
        if (opened > 0 && *flag(start) != 0) die("a peer's memory was freed before it was closed");
    }
};

static std::mutex memory_lock;
static std::map<u64, Block> device_blocks;
static std::map<u64, u64> host_blocks;
static std::map<u64, u64> registered;
static u64 taken;
// Whether a GPU's context reaches what another's has allocated.
static bool reaches[GPUS][GPUS];

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
    block.check(start);
    const bool is_reached = block.gpu == gpu || (block.opened == 0 && reaches[gpu][block.gpu]);
    return is_reached && address + bytes <= start + block.bytes;
}

static bool is_host(u64 address, u64 bytes) {
    std::lock_guard<std::mutex> guard(memory_lock);
    return holds(host_blocks, address, bytes, [](const u64 &length) -> u64 { return length; });
}

static bool is_registered(u64 address) {
    std::lock_guard<std::mutex> guard(memory_lock);
    return holds(registered, address, 4, [](const u64 &length) -> u64 { return length; });
}

// ---- streams and events ----

struct Stream {
    int gpu;
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> orders;
    bool is_busy = false;
    bool is_destroyed = false;
};

static std::mutex streams_lock;
static std::vector<std::shared_ptr<Stream>> streams;
static std::atomic<int> waiting{0};

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
        }
        pause = pause * 1664525 + 1013904223;
        if (pause >> 30 == 0) usleep(pause >> 22 & 0xff);
        order();
    }
}

static std::shared_ptr<Stream> known(void *handle) {
    std::lock_guard<std::mutex> guard(streams_lock);
    for (auto &stream : streams) {
        if (stream.get() == handle) return stream;
    }
    return nullptr;
}

static Result enqueue(void *handle, std::function<void()> order) {
    NEEDS_CONTEXT;
    auto stream = known(handle);
    if (!stream || stream->gpu != current_gpu()) return INVALID_HANDLE;
    std::lock_guard<std::mutex> guard(stream->lock);
    stream->orders.push_back(std::move(order));
    stream->changed.notify_all();
    return SUCCESS;
}

static void wait_for(const std::shared_ptr<Stream> &stream) {
    std::unique_lock<std::mutex> guard(stream->lock);
    stream->changed.wait(guard, [&] { return stream->orders.empty() && !stream->is_busy; });
}

// Streams that were destroyed with work to do are among them.
static void wait_for_everything() {
    if (waiting != 0) die("memory is freed while a stream waits for a word");
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
static std::map<void *, std::shared_ptr<Event>> events;

static std::shared_ptr<Event> known_event(void *handle) {
    std::lock_guard<std::mutex> guard(events_lock);
    auto found = events.find(handle);
    return found == events.end() ? nullptr : found->second;
}

// ---- kernels ----

static std::mutex kernel_lock;

template <class Arguments> static void launch_kernel(void (*kernel)(const Arguments &), const u8 *bytes, u64 threads, int gpu, u64 from, u64 to) {
    Arguments arguments;
    std::memcpy(&arguments, bytes, sizeof(arguments));
    std::lock_guard<std::mutex> guard(kernel_lock);
    launch = Launch();
    launch.threads = threads;
    bind(arguments, 0, from, to);
    for (auto *ranges : {&launch.readable, &launch.writable}) {
        for (const Range &range : *ranges) {
            if (!is_device(range.start, range.end - range.start, gpu)) die("a kernel's memory was freed, or is not reached");
        }
    }
    for (launch.thread = 0; launch.thread < threads; launch.thread++) kernel(arguments);
}

static u64 argument_bytes(const std::string &name) {
    return name.find("ringtree_cast_") == 0 ? sizeof(CastArguments) : sizeof(FoldArguments);
}

static void run_kernel(const std::string &name, const u8 *bytes, u64 threads, int gpu) {
#define LAUNCH_FOLD(operation, dtype, Numbers, Operation, DIVIDES)                               \
    if (name == "ringtree_" #operation "_" #dtype) {                                             \
        return launch_kernel(ringtree_##operation##_##dtype, bytes, threads, gpu, Numbers::SIZE, Numbers::SIZE); \
    }
#define LAUNCH_NARROW(name_, Half)                                                               \
    if (name == "ringtree_cast_" #name_) return launch_kernel(ringtree_cast_##name_, bytes, threads, gpu, 4, 2);
#define LAUNCH_WIDEN(name_, Half)                                                                \
    if (name == "ringtree_cast_" #name_) return launch_kernel(ringtree_cast_##name_, bytes, threads, gpu, 2, 4);
    EVERY_FOLD(LAUNCH_FOLD)
    EVERY_CAST(LAUNCH_NARROW, LAUNCH_WIDEN)
    die("no such kernel");
}

// ---- the driver's calls ----

extern "C" {

Result cuInit(unsigned) { return SUCCESS; }
Result cuDriverGetVersion(int *version) { return *version = 12040, SUCCESS; }
Result cuDeviceGetCount(int *count) { return *count = GPUS, SUCCESS; }
Result cuDeviceGet(int *device, int ordinal) {
    return *device = FIRST_DEVICE + ordinal, ordinal >= 0 && ordinal < GPUS ? SUCCESS : INVALID_VALUE;
}
Result cuDeviceGetName(char *name, int, int) { return std::strcpy(name, "a pretended GPU"), SUCCESS; }
Result cuDeviceGetUuid_v2(char *uuid, int device) {
    std::memcpy(uuid, "pretended by us!", 16);
    return uuid[15] += device - FIRST_DEVICE, SUCCESS;
}
Result cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = MEMORY_BYTES, SUCCESS; }
// No memory pools, by which slices would be allocated.
Result cuDeviceGetAttribute(int *value, int which, int) { return *value = which == 115 ? 0 : 2, SUCCESS; }
Result cuDevicePrimaryCtxRetain(void **context, int device) {
    return *context = &primaries[device - FIRST_DEVICE], SUCCESS;
}

Result cuDeviceCanAccessPeer(int *can, int device, int peer) {
    return *can = can_access(device - FIRST_DEVICE, peer - FIRST_DEVICE), SUCCESS;
}

Result cuCtxEnablePeerAccess(void *peer, unsigned flags) {
    NEEDS_CONTEXT;
    const int gpu = current_gpu(), other = gpu_of(peer);
    if (flags != 0 || other < 0) return INVALID_VALUE;
    if (!can_access(gpu, other)) return PEER_ACCESS_UNSUPPORTED;
    std::lock_guard<std::mutex> guard(memory_lock);
    const bool was = reaches[gpu][other];
    reaches[gpu][other] = true;
    return was ? PEER_ACCESS_ALREADY_ENABLED : SUCCESS;
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

Result cuMemAlloc_v2(u64 *address, size_t bytes) {
    NEEDS_CONTEXT;
    if (bytes == 0) return INVALID_VALUE;
    std::lock_guard<std::mutex> guard(memory_lock);
    if (bytes > MEMORY_BYTES - taken) return OUT_OF_MEMORY;
    const int file = memfd_create("pretended GPU", MFD_CLOEXEC);
    const u64 mapped = Block{bytes}.mapped();
    if (file < 0 || ftruncate(file, mapped) != 0) return OUT_OF_MEMORY;
    void *start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct stat found;
    if (start == MAP_FAILED || fstat(file, &found) != 0) return OUT_OF_MEMORY;
    *address = reinterpret_cast<u64>(start);
    device_blocks[*address] = {bytes, current_gpu(), file, 0, found.st_ino};
    taken += bytes;
    return SUCCESS;
}

static Result unmap(u64 address, bool is_peers) {
    NEEDS_CONTEXT;
    wait_for_everything();
    std::lock_guard<std::mutex> guard(memory_lock);
    auto found = device_blocks.find(address);
    if (found == device_blocks.end() || (found->second.opened > 0) != is_peers) {
        die("what is freed is not there");
    }
    if (found->second.gpu != current_gpu()) die("what is freed is another GPU's");
    found->second.check(address);
    if (found->second.opened > 1) return found->second.opened -= 1, SUCCESS;
    if (!is_peers) *found->second.flag(address) = 1;
    munmap(reinterpret_cast<void *>(address), found->second.mapped());
    close(found->second.file);
    if (!is_peers) taken -= found->second.bytes;
    device_blocks.erase(found);
    return SUCCESS;
}

Result cuMemFree_v2(u64 address) { return unmap(address, false); }
Result cuIpcCloseMemHandle(u64 address) { return unmap(address, true); }

Result cuMemGetAddressRange_v2(u64 *base, size_t *bytes, u64 address) {
    NEEDS_CONTEXT;
    std::lock_guard<std::mutex> guard(memory_lock);
    auto after = device_blocks.upper_bound(address);
    if (after == device_blocks.begin()) return INVALID_VALUE;
    --after;
    if (address >= after->first + after->second.bytes) return INVALID_VALUE;
    *base = after->first;
    *bytes = after->second.bytes;
    return SUCCESS;
}

struct Handle {
    char mark[8];
    int process;
    int file;
    u64 inode;
    u64 bytes;
    int gpu;
    char unused[28];
};
static_assert(sizeof(Handle) == 64, "the driver's handles have 64 bytes");

Result cuIpcGetMemHandle(Handle *handle, u64 address) {
    NEEDS_CONTEXT;
    std::lock_guard<std::mutex> guard(memory_lock);
    auto found = device_blocks.find(address);
    if (found == device_blocks.end() || found->second.opened > 0) return INVALID_VALUE;
    *handle = {"memory", getpid(), found->second.file, found->second.inode, found->second.bytes, found->second.gpu, {}};
    return SUCCESS;
}

Result cuIpcOpenMemHandle_v2(u64 *address, Handle handle, unsigned flags) {
    NEEDS_CONTEXT;
    if (flags != 1 || std::memcmp(handle.mark, "memory", 7) != 0) return INVALID_VALUE;
    if (handle.process == getpid()) return INVALID_CONTEXT;
    const int gpu = current_gpu();
    if (gpu != handle.gpu && !can_access(gpu, handle.gpu)) return PEER_ACCESS_UNSUPPORTED;
    std::lock_guard<std::mutex> guard(memory_lock);
    for (auto &[start, block] : device_blocks) {
        if (block.opened > 0 && block.inode == handle.inode && block.gpu == gpu) {
            block.opened += 1;
            return *address = start, SUCCESS;
        }
    }
    const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat found;
    if (file < 0 || fstat(file, &found) != 0 || found.st_ino != handle.inode) return INVALID_VALUE;
    void *start = mmap(nullptr, Block{handle.bytes}.mapped(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (start == MAP_FAILED) return OUT_OF_MEMORY;
    *address = reinterpret_cast<u64>(start);
    device_blocks[*address] = {handle.bytes, gpu, file, 1, handle.inode};
    return SUCCESS;
}

Result cuMemHostAlloc(void **start, size_t bytes, unsigned) {
    NEEDS_CONTEXT;
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
    if (host_blocks.erase(reinterpret_cast<u64>(start)) != 1) die("what is freed is not there");
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
    if (registered.erase(reinterpret_cast<u64>(start)) != 1) die("what is unregistered is not there");
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
    std::lock_guard<std::mutex> guard(streams_lock);
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
    return wait_for(stream), SUCCESS;
}

Result cuStreamIsCapturing(void *, int *status) {
    NEEDS_CONTEXT;
    return *status = 0, SUCCESS;
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
    waiting += 1;
    return enqueue(stream, [=] {
        auto *word = reinterpret_cast<std::atomic<u32> *>(address);
        for (;;) {
            if (!is_registered(address)) die("a word that is waited for was unregistered");
            if (i32(word->load() - value) >= 0) break;
            usleep(50);
        }
        waiting -= 1;
    });
}

Result cuStreamWriteValue32_v2(void *stream, u64 address, u32 value, unsigned flags) {
    if (flags != 0 || !is_registered(address)) return INVALID_VALUE;
    return enqueue(stream, [=] {
        if (!is_registered(address)) die("a word that is written was unregistered");
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
        return result == SUCCESS ? cuStreamSynchronize(stream) : result;
    }
    return enqueue(stream, [=] {
        const auto is_there = [=](u64 start, bool on_host) { return on_host ? is_host(start, bytes) : is_device(start, bytes, gpu); };
        if (!is_there(to, to_host) || !is_there(from, from_host)) die("a copy's memory was freed, or is none");
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

Result cuModuleLoadData(void **module, const void *image) {
    NEEDS_CONTEXT;
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
    const std::string name = *static_cast<std::string *>(function);
    const auto *bytes = static_cast<const u8 *>(arguments[0]);
    const std::vector<u8> copied(bytes, bytes + argument_bytes(name));
    auto its = known(stream);
    if (!its) return INVALID_HANDLE;
    const int gpu = its->gpu;
    return enqueue(stream, [=] { run_kernel(name, copied.data(), u64(blocks) * threads, gpu); });
}

} // extern "C"

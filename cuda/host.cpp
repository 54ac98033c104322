// Runs the kernels of `reduce.cu` on a CPU, for tests. It reads launches from standard input until
// the input ends, and writes the resulting memory of each to standard output.
//
// A launch consists of a `Request`, the kernel's arguments with offsets into the memory instead of
// addresses, and the memory. The answer is the memory, then an `Answer`. The first invalid access,
// or an unknown kernel name, ends the program with a one-line message.
#include "reduce.cu"

struct Request {
    char name[32];
    u32 blocks;
    u32 block_threads;
    // If not 0, the last thread runs first.
    u32 backwards;
    u32 unused;
    u64 memory_bytes;
};

struct Answer {
    u64 bytes_by_vector;
    u64 bytes_read;
    u64 bytes_written;
};

[[noreturn]] static void fail(const char *reason) {
    std::fprintf(stderr, "%s\n", reason);
    std::exit(1);
}

static bool read_all(void *bytes, u64 count) {
    const u64 got = std::fread(bytes, 1, count, stdin);
    if (got != 0 && got != count) {
        fail("the input ends within a launch");
    }
    return got == count;
}

static void write_all(const void *bytes, u64 count) {
    if (std::fwrite(bytes, 1, count, stdout) != count) {
        fail("the output is closed");
    }
}

struct Kernel {
    const char *name;
    void (*call)(const Arguments &);
    u64 element_bytes;
};

static const Kernel *kernel_named(const char *name) {
#define KERNEL_ENTRY(dtype, Numbers)                                                             \
    {"ringtree_reduce_" #dtype, ringtree_reduce_##dtype, Numbers::SIZE},
    static const Kernel kernels[] = {EVERY_DTYPE(KERNEL_ENTRY)};
    for (const Kernel &kernel : kernels) {
        if (std::strcmp(name, kernel.name) == 0) {
            return &kernel;
        }
    }
    fail("no such kernel");
}

// Begins a launch whose accesses must stay inside the buffers of `arguments`.
static void begin(const Kernel &kernel, const Arguments &arguments, u64 threads) {
    launch = Launch();
    launch.threads = threads;
    const u64 bytes = arguments.elements * kernel.element_bytes;
    for (u32 index = 0; index < arguments.source_count; index++) {
        const u64 start = arguments.sources[index];
        launch.readable.push_back({start, start + bytes});
    }
    launch.writable.push_back({arguments.destination, arguments.destination + bytes});
}

static void run(const Kernel &kernel, const Request &request) {
    Arguments arguments;
    // Lines of 64 bytes, so that offsets have the alignment of addresses.
    struct alignas(64) Line {
        u8 bytes[64];
    };
    std::vector<Line> memory(request.memory_bytes / 64 + 1);
    if (!read_all(&arguments, sizeof(arguments)) ||
        !read_all(memory.data(), request.memory_bytes)) {
        fail("the input ends within a launch");
    }
    for (u32 index = 0; index < arguments.source_count; index++) {
        arguments.sources[index] += reinterpret_cast<u64>(memory.data());
    }
    arguments.destination += reinterpret_cast<u64>(memory.data());
    begin(kernel, arguments, u64(request.blocks) * request.block_threads);
    for (u64 turn = 0; turn < launch.threads; turn++) {
        launch.thread = request.backwards ? launch.threads - 1 - turn : turn;
        kernel.call(arguments);
    }
    const Answer answer = {launch.bytes_by_vector, launch.bytes_read, launch.bytes_written};
    write_all(memory.data(), request.memory_bytes);
    write_all(&answer, sizeof(answer));
    std::fflush(stdout);
}

int main() {
    Request request;
    while (read_all(&request, sizeof(request))) {
        request.name[sizeof(request.name) - 1] = 0;
        run(*kernel_named(request.name), request);
    }
    return 0;
}

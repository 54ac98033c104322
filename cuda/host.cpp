// Runs the kernels of `reduce.cu` on a CPU, for tests: reads launches from standard input and writes
// what each made of its memory to standard output, until the input ends.
//
// A launch is a `Request`, the kernel's arguments with offsets into the memory in place of
// addresses, and the memory. The answer is the memory, then an `Answer`. The first wrong access, or
// a name that is no kernel's, ends the program with one line of complaint.
#include "reduce.cu"

struct Request {
    char name[32];
    u32 blocks;
    u32 block_threads;
    // Whether the last thread runs first.
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

template <class Arguments> static void bind(Arguments &arguments, u64 memory, u64 source_size, u64);

template <> void bind(FoldArguments &arguments, u64 memory, u64 size, u64) {
    for (u32 index = 0; index < arguments.source_count; index++) {
        u64 &start = arguments.sources[index];
        start += memory;
        launch.readable.push_back({start, start + arguments.elements * size});
    }
    for (u32 index = 0; index < arguments.destination_count; index++) {
        u64 &start = arguments.destinations[index];
        start += memory;
        launch.writable.push_back({start, start + arguments.elements * size});
    }
}

template <> void bind(CastArguments &arguments, u64 memory, u64 from, u64 to) {
    arguments.source += memory;
    arguments.destination += memory;
    launch.readable.push_back({arguments.source, arguments.source + arguments.elements * from});
    launch.writable.push_back({arguments.destination, arguments.destination + arguments.elements * to});
}

// Runs one launch of `kernel`, whose elements are so large.
template <class Arguments>
static void run(void (*kernel)(const Arguments &), const Request &request, u64 source_size,
                u64 destination_size) {
    Arguments arguments;
    // Vectors of 64 bytes, so that offsets have the alignment of addresses.
    struct alignas(64) Line {
        u8 bytes[64];
    };
    std::vector<Line> memory(request.memory_bytes / 64 + 1);
    if (!read_all(&arguments, sizeof(arguments)) || !read_all(memory.data(), request.memory_bytes)) {
        fail("the input ends within a launch");
    }
    launch = Launch();
    launch.threads = u64(request.blocks) * request.block_threads;
    bind(arguments, reinterpret_cast<u64>(memory.data()), source_size, destination_size);
    for (u64 turn = 0; turn < launch.threads; turn++) {
        launch.thread = request.backwards ? launch.threads - 1 - turn : turn;
        kernel(arguments);
    }
    const Answer answer = {launch.bytes_by_vector, launch.bytes_read, launch.bytes_written};
    write_all(memory.data(), request.memory_bytes);
    write_all(&answer, sizeof(answer));
    std::fflush(stdout);
}

#define RUN_FOLD(operation, dtype, Numbers, Operation, DIVIDES)                                  \
    if (std::strcmp(request.name, "ringtree_" #operation "_" #dtype) == 0) {                     \
        run(ringtree_##operation##_##dtype, request, Numbers::SIZE, Numbers::SIZE);              \
        continue;                                                                                \
    }
#define RUN_NARROW(name_, Half)                                                                  \
    if (std::strcmp(request.name, "ringtree_cast_" #name_) == 0) {                               \
        run(ringtree_cast_##name_, request, 4, 2);                                               \
        continue;                                                                                \
    }
#define RUN_WIDEN(name_, Half)                                                                   \
    if (std::strcmp(request.name, "ringtree_cast_" #name_) == 0) {                               \
        run(ringtree_cast_##name_, request, 2, 4);                                               \
        continue;                                                                                \
    }

int main() {
    Request request;
    while (read_all(&request, sizeof(request))) {
        request.name[sizeof(request.name) - 1] = 0;
        EVERY_FOLD(RUN_FOLD)
        EVERY_CAST(RUN_NARROW, RUN_WIDEN)
        fail("no such kernel");
    }
    return 0;
}

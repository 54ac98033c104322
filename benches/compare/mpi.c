/* Times one MPI collective in the same way as `ringtree bench --in-place` times ringtree's.
 *
 *   mpirun -np N mpi LIMIT_S COLLECTIVE BYTES...
 *
 * COLLECTIVE is all-reduce, broadcast, reduce, all-gather or reduce-scatter. Elements are f32, the
 * operator is sum, and the root is rank 0. BYTES is the size of the complete buffer. For all-gather
 * and reduce-scatter, this buffer contains the blocks of all ranks. Rank 0 prints CSV.
 *
 * The time of a batch is the slowest rank's mean time per call. The median batch is reported. There
 * is one checked call before the batches and one after each batch. Batches run on zeros, so that
 * repeated sums do not overflow. A rank that has not finished after LIMIT_S seconds is killed.
 */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    BATCHES = 5,
    CALLS_MIN = 3,
    CALLS_MAX = 200000,
    GROWTH = 16,   /* growth of trial batches, until one shows how many calls to make */
    PERIOD = 17,   /* number of elements after which the inputs of checked calls repeat */
};
static const double POINT_S = 0.5; /* approximate time for all batches of one size together */

static const char *const COLLECTIVES[] = {"all-reduce", "broadcast", "reduce", "all-gather",
                                          "reduce-scatter"};
enum collective { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, NONE };

static int ranks, rank;
static enum collective collective;
static float *buffer;
static int count; /* number of elements in the complete buffer */
static int block; /* number of elements in one rank's block */

static void call(void) {
    MPI_Comm all = MPI_COMM_WORLD;
    switch (collective) {
    case ALL_REDUCE:
        MPI_Allreduce(MPI_IN_PLACE, buffer, count, MPI_FLOAT, MPI_SUM, all);
        break;
    case BROADCAST:
        MPI_Bcast(buffer, count, MPI_FLOAT, 0, all);
        break;
    case REDUCE:
        if (rank == 0)
            MPI_Reduce(MPI_IN_PLACE, buffer, count, MPI_FLOAT, MPI_SUM, 0, all);
        else
            MPI_Reduce(buffer, NULL, count, MPI_FLOAT, MPI_SUM, 0, all);
        break;
    case ALL_GATHER:
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer, block, MPI_FLOAT, all);
        break;
    case REDUCE_SCATTER: /* leaves this rank's block at the beginning of the buffer */
        MPI_Reduce_scatter_block(MPI_IN_PLACE, buffer, block, MPI_FLOAT, MPI_SUM, all);
        break;
    case NONE:
        break;
    }
}

/* Returns the input of rank `owner` at `index` for a checked call. Inputs are small integers, so
 * that sums are exact. */
static float input(int owner, size_t index) {
    return (float)((index * 5 + (size_t)owner * 3) % PERIOD);
}

/* Returns the number of elements among the `length` at `found` that differ from the inputs of rank
 * `owner`, starting at index `start`. If `owner` is -1, compares them with the sum of all ranks'
 * inputs. */
static long long differing(const float *found, size_t start, size_t length, int owner) {
    float expected[PERIOD] = {0};
    for (size_t index = 0; index < PERIOD; index++)
        for (int one = 0; one < ranks; one++)
            if (owner == one || owner == -1)
                expected[index] += input(one, index);
    long long wrong = 0;
    for (size_t index = 0; index < length; index++)
        wrong += found[index] != expected[(start + index) % PERIOD];
    return wrong;
}

/* Issues one call on predictable inputs and returns the number of wrong elements on this rank. */
static long long checked_call(void) {
    for (int index = 0; index < count; index++)
        buffer[index] = input(rank, (size_t)index);
    call();
    long long wrong = 0;
    switch (collective) {
    case ALL_REDUCE:
        return differing(buffer, 0, (size_t)count, -1);
    case BROADCAST:
        return differing(buffer, 0, (size_t)count, 0);
    case REDUCE:
        return rank == 0 ? differing(buffer, 0, (size_t)count, -1) : 0;
    case ALL_GATHER:
        for (int owner = 0; owner < ranks; owner++) {
            size_t start = (size_t)owner * (size_t)block;
            wrong += differing(buffer + start, start, (size_t)block, owner);
        }
        return wrong;
    case REDUCE_SCATTER:
        return differing(buffer, (size_t)rank * (size_t)block, (size_t)block, -1);
    case NONE:
        break;
    }
    return 0;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Runs a batch and returns the slowest rank's mean time per call, in seconds. All ranks return the
 * same number. */
static double batch(int calls) {
    double elapsed_s = 0;
    memset(buffer, 0, (size_t)count * sizeof *buffer);
    MPI_Barrier(MPI_COMM_WORLD);
    if (collective == BROADCAST || collective == REDUCE) {
        /* The root or the other ranks could run ahead, so each call is timed after a barrier. */
        for (int done = 0; done < calls; done++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double start_s = now_s();
            call();
            elapsed_s += now_s() - start_s;
        }
    } else {
        double start_s = now_s();
        for (int done = 0; done < calls; done++)
            call();
        elapsed_s = now_s() - start_s;
    }
    double mean_s = elapsed_s / calls;
    MPI_Allreduce(MPI_IN_PLACE, &mean_s, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return mean_s;
}

static int choose_calls(void) {
    for (int calls = CALLS_MIN;; calls *= GROWTH) {
        double wanted = POINT_S / BATCHES / (batch(calls) + 1e-9);
        if (wanted > CALLS_MAX)
            wanted = CALLS_MAX;
        if (wanted <= (double)calls * GROWTH)
            return wanted < CALLS_MIN ? CALLS_MIN : (int)wanted;
    }
}

static int by_time(const void *left, const void *right) {
    double first = *(const double *)left, second = *(const double *)right;
    return (first > second) - (first < second);
}

static _Noreturn void refuse(const char *what, const char *why) {
    if (rank == 0)
        fprintf(stderr, "mpi: %s: %s\n", what, why);
    MPI_Finalize();
    exit(2);
}

/* Measures one size and prints its CSV line. Returns the number of wrong elements on all ranks. */
static long long measure(const char *text) {
    char *end;
    long long bytes = strtoll(text, &end, 10);
    if (*end || bytes < 1 || bytes / (long long)sizeof(float) + ranks > INT_MAX)
        refuse(text, "not a number of bytes that an int can count in f32");
    count = (int)(bytes / (long long)sizeof(float));
    if (count == 0)
        count = 1;
    if (collective == ALL_GATHER || collective == REDUCE_SCATTER) {
        block = count < ranks ? 1 : count / ranks;
        count = block * ranks;
    }
    buffer = malloc((size_t)count * sizeof *buffer);
    if (!buffer) {
        fprintf(stderr, "mpi: cannot allocate a buffer of %lld bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    long long wrong = checked_call();
    int calls = choose_calls();
    double times_s[BATCHES];
    for (int number = 0; number < BATCHES; number++) {
        times_s[number] = batch(calls);
        wrong += checked_call();
    }
    qsort(times_s, BATCHES, sizeof *times_s, by_time);
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%s,%d,%lld,%d,%d,%.4f,%lld\n", COLLECTIVES[collective], ranks, bytes, count, calls,
               times_s[BATCHES / 2] * 1e6, wrong);
        fflush(stdout);
    }
    free(buffer);
    return wrong;
}

int main(int arguments, char **values) {
    MPI_Init(&arguments, &values);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (arguments < 4 || atoi(values[1]) < 1)
        refuse("usage", "mpi LIMIT_S COLLECTIVE BYTES...");
    alarm((unsigned)atoi(values[1]));
    for (; collective != NONE; collective++)
        if (!strcmp(values[2], COLLECTIVES[collective]))
            break;
    if (collective == NONE)
        refuse(values[2], "unknown collective");
    if (rank == 0)
        puts("collective,ranks,bytes,count,iters,time_us,wrong");
    long long wrong = 0;
    for (int number = 3; number < arguments; number++)
        wrong += measure(values[number]);
    MPI_Finalize();
    return wrong != 0;
}

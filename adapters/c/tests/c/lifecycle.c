/* Handles are destroyed while operations or other threads use them. Work outlives its communicator.
 * An abort ends calls in other threads. A timeout error names the missing rank. A rank that cannot
 * allocate memory ends the call on all ranks. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#define COUNT 300000

static ringtree_comm_t *world;
static int rank, ranks;

static void sleep_ms(long time) {
    struct timespec span = {time / 1000, time % 1000 * 1000000};
    nanosleep(&span, NULL);
}

static ringtree_comm_t *duplicate(void) {
    ringtree_comm_t *comm;
    OK(ringtree_comm_split(world, 0, 0, &comm));
    return comm;
}

static void destroy_in_flight(void) {
    ringtree_comm_t *comm = duplicate();
    float *many = malloc(COUNT * sizeof *many), *sums = malloc(COUNT * sizeof *sums);
    ringtree_work_t *work[2];
    for (int i = 0; i < COUNT; i++) {
        many[i] = 1;
    }
    sleep_ms(rank == 0 ? 50 : 0); /* the other ranks' work waits for rank 0's */
    OK(ringtree_all_reduce_start(many, sums, COUNT, RINGTREE_F32, RINGTREE_SUM, comm, &work[0]));
    OK(ringtree_reduce_start(many, rank == 1 ? many : NULL, COUNT, RINGTREE_F32, RINGTREE_MAX, 1,
                             comm, &work[1]));
    OK(ringtree_comm_destroy(comm));
    OK(ringtree_work_wait(work[0]));
    CHECK(sums[0] == (float)ranks && sums[COUNT - 1] == (float)ranks);
    OK(ringtree_work_wait(work[1]));
    OK(ringtree_work_free(work[0]));
    OK(ringtree_work_free(work[1]));
    free(many);
    free(sums);
}

/* Work cannot be freed before the peer's message has completed it. */
static void free_in_flight(void) {
    int own = rank, theirs = -1, peer = rank ^ 1;
    ringtree_work_t *work;
    if (peer >= ranks) {
        return;
    }
    OK(ringtree_recv_start(&theirs, 1, RINGTREE_I32, peer, world, &work));
    REFUSED(ringtree_work_free(work), "still in flight");
    OK(ringtree_barrier(world)); /* no rank sends before all ranks have tried to free their work */
    OK(ringtree_send(&own, 1, RINGTREE_I32, peer, world));
    OK(ringtree_work_wait(work));
    OK(ringtree_work_free(work));
    CHECK(theirs == peer);
}

/* Checks that the call failed with the error of the abort. */
static void check_aborted(ringtree_result_t result) {
    CHECK(result == RINGTREE_PEER_LOST);
    CHECK(strstr(ringtree_last_error(), "rank 1 aborted: the disk is full") != NULL);
    CHECK(ringtree_last_error_details()->peer == 1);
}

static void *wait_aborted(void *work) {
    check_aborted(ringtree_work_wait(work));
    return NULL;
}

static void abort_in_flight(void) {
    ringtree_comm_t *comm = duplicate();
    int one = 1, never = 0;
    if (rank == 0) {
        check_aborted(ringtree_recv(&never, 1, RINGTREE_I32, 1, comm));
    } else if (rank > 1) {
        /* Rank 0 does not issue this call, so only the abort can end it. */
        check_aborted(ringtree_all_reduce(&one, &one, 1, RINGTREE_I32, RINGTREE_SUM, comm));
    } else {
        pthread_t thread;
        ringtree_work_t *work;
        OK(ringtree_all_reduce_start(&one, &one, 1, RINGTREE_I32, RINGTREE_SUM, comm, &work));
        CHECK(pthread_create(&thread, NULL, wait_aborted, work) == 0);
        OK(ringtree_comm_abort(comm, "the disk is full"));
        CHECK(pthread_join(thread, NULL) == 0);
        OK(ringtree_work_free(work));
        REFUSED(ringtree_comm_destroy(comm), "aborted");
        return;
    }
    OK(ringtree_comm_destroy(comm));
}

static void missing_rank(void) {
    ringtree_comm_t *comm = duplicate();
    if (rank != 1) {
        OK(ringtree_comm_set_timeout_ms(comm, 400));
        CHECK(ringtree_barrier(comm) == RINGTREE_DEADLINE); /* rank 1 does not call it */
        const ringtree_error_t *error = ringtree_last_error_details();
        int is_missing = 0;
        for (int i = 0; i < error->missing_count; i++) {
            is_missing = is_missing || error->missing[i] == 1;
        }
        CHECK(error->result == RINGTREE_DEADLINE && error->elapsed_ms >= 400 && is_missing);
        CHECK(strcmp(error->operation, "barrier") == 0 && error->sequence == 1);
        CHECK(strcmp(error->message, ringtree_last_error()) == 0);
    }
    OK(ringtree_barrier(world)); /* the other communicator continues to work */
    OK(ringtree_comm_destroy(comm));
}

/* AddressSanitizer needs more address space than the limit below, and it ends a program that runs
 * out of memory. */
#ifndef __SANITIZE_ADDRESS__
static void out_of_memory(void) {
    ringtree_comm_t *comm = duplicate();
    ringtree_result_t found;
    const size_t many = (size_t)1 << 40;
    if (rank == 1) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        char *zeros = mmap(NULL, many, PROT_READ, flags, -1, 0);
        struct rlimit before, limit;
        CHECK(zeros != MAP_FAILED && getrlimit(RLIMIT_AS, &before) == 0);
        limit = before;
        limit.rlim_cur = many + many / 2;
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
        CHECK(ringtree_reduce(zeros, NULL, many, RINGTREE_U8, RINGTREE_MAX, 0, comm) ==
              RINGTREE_SYSTEM);
        CHECK(setrlimit(RLIMIT_AS, &before) == 0 && munmap(zeros, many) == 0);
    }
    CHECK(ringtree_barrier(comm) == RINGTREE_SYSTEM);
    CHECK(strstr(ringtree_last_error(), "rank 1 cannot allocate") != NULL);
    OK(ringtree_comm_get_async_error(comm, &found));
    CHECK(found == RINGTREE_SYSTEM);
    OK(ringtree_comm_destroy(comm));
}
#else
static void out_of_memory(void) {}
#endif

int main(void) {
    OK(ringtree_comm_init_from_env(&world));
    OK(ringtree_comm_rank(world, &rank));
    OK(ringtree_comm_count(world, &ranks));
    destroy_in_flight();
    free_in_flight();
    abort_in_flight();
    missing_rank();
    out_of_memory();
    OK(ringtree_comm_destroy(world));
    return 0;
}

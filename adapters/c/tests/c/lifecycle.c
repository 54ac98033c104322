/* Handles that end while others use them: work outlives its communicator, an abort ends the calls of
 * other threads, a deadline names who is missing. */
#define _POSIX_C_SOURCE 199309L
#include "check.h"
#include <pthread.h>
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

static void destroyed_under_way(void) {
    ringtree_comm_t *comm = duplicate();
    float *many = malloc(COUNT * sizeof *many), *sums = malloc(COUNT * sizeof *sums);
    ringtree_work_t *work[2];
    for (int i = 0; i < COUNT; i++) {
        many[i] = 1;
    }
    sleep_ms(rank == 0 ? 50 : 0); /* the others' work waits for this rank's */
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

/* Work that only looks ended once the others have come cannot be freed before. */
static void freed_under_way(void) {
    int own = rank, theirs = -1, peer = rank ^ 1;
    ringtree_work_t *work;
    if (peer >= ranks) {
        return;
    }
    OK(ringtree_recv_start(&theirs, 1, RINGTREE_I32, peer, world, &work));
    REFUSED(ringtree_work_free(work), "still under way");
    OK(ringtree_barrier(world)); /* nobody sends before everybody has tried */
    OK(ringtree_send(&own, 1, RINGTREE_I32, peer, world));
    OK(ringtree_work_wait(work));
    OK(ringtree_work_free(work));
    CHECK(theirs == peer);
}

static void *in_a_barrier(void *comm) {
    /* Rank 0 never comes: what ends this is the abort. */
    CHECK(ringtree_barrier(comm) == RINGTREE_PEER_LOST);
    CHECK(strstr(ringtree_last_error(), "rank 1 aborted: the disk is full") != NULL);
    CHECK(ringtree_last_error_details()->peer == 1);
    return NULL;
}

static void aborted(void) {
    ringtree_comm_t *comm = duplicate();
    if (rank == 1) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, in_a_barrier, comm) == 0);
        sleep_ms(50);
        OK(ringtree_comm_abort(comm, "the disk is full"));
        CHECK(pthread_join(thread, NULL) == 0);
        REFUSED(ringtree_comm_destroy(comm), "aborted");
        /* The thread's error is the thread's own. */
        CHECK(ringtree_last_error_details()->result == RINGTREE_USAGE);
        return;
    }
    if (rank == 0) {
        sleep_ms(150);
    }
    in_a_barrier(comm);
    OK(ringtree_comm_destroy(comm));
}

static void late(void) {
    ringtree_comm_t *comm = duplicate();
    if (rank == 1) {
        sleep_ms(600);
    } else {
        OK(ringtree_comm_set_timeout_ms(comm, 200));
        CHECK(ringtree_barrier(comm) == RINGTREE_DEADLINE);
        const ringtree_error_t *error = ringtree_last_error_details();
        CHECK(error->result == RINGTREE_DEADLINE && error->elapsed_ms >= 200);
        CHECK(error->missing_count == 1 && error->missing[0] == 1);
        CHECK(strcmp(error->operation, "barrier") == 0 && error->sequence == 1);
        CHECK(strcmp(error->message, ringtree_last_error()) == 0);
    }
    OK(ringtree_barrier(world)); /* another communicator, which goes on */
    OK(ringtree_comm_destroy(comm));
}

int main(void) {
    OK(ringtree_comm_init_from_env(&world));
    OK(ringtree_comm_rank(world, &rank));
    OK(ringtree_comm_count(world, &ranks));
    destroyed_under_way();
    freed_under_way();
    aborted();
    late();
    OK(ringtree_comm_destroy(world));
    return 0;
}

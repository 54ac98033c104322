#define _POSIX_C_SOURCE 199309L
/* Rank 1 is killed while the other ranks are in a call. The others print the error they receive. */
#include "check.h"
#include <signal.h>
#include <unistd.h>

int main(void) {
    ringtree_comm_t *comm, *idle;
    ringtree_result_t found = RINGTREE_PROTOCOL;
    ringtree_work_t *work;
    int rank, ranks, one = 1;
    OK(ringtree_comm_init_from_env(&comm));
    OK(ringtree_comm_rank(comm, &rank));
    OK(ringtree_comm_count(comm, &ranks));
    OK(ringtree_comm_split(comm, 0, 0, &idle));
    OK(ringtree_comm_get_async_error(idle, &found));
    CHECK(found == RINGTREE_SUCCESS);
    OK(ringtree_barrier(comm));
    if (rank == 1) {
        for (int other = 0; other < ranks; other++) {
            OK(other == 1 ? RINGTREE_SUCCESS : ringtree_recv(&one, 1, RINGTREE_I32, other, comm));
        }
        raise(SIGKILL);
    }
    int sum = one;
    OK(ringtree_all_reduce_start(&sum, &sum, 1, RINGTREE_I32, RINGTREE_SUM, comm, &work));
    OK(ringtree_send(&one, 1, RINGTREE_I32, 1, comm)); /* rank 1 may die now */
    CHECK(ringtree_work_wait(work) == RINGTREE_PEER_LOST);
    const ringtree_error_t *error = ringtree_last_error_details();
    printf("peer %d, %s #%d: %s\n", error->peer, error->operation ? error->operation : "none",
           (int)error->sequence, ringtree_last_error());
    OK(ringtree_work_free(work));
    OK(ringtree_comm_destroy(comm));
    alarm(60);
    while (found == RINGTREE_SUCCESS) { /* no call is in flight */
        OK(ringtree_comm_get_async_error(idle, &found));
    }
    CHECK(found == RINGTREE_PEER_LOST && ringtree_last_error_details()->peer == 1);
    OK(ringtree_comm_destroy(idle));
    return 0;
}

/* Rank 1 is killed; the others say what they are told of it. */
#include "check.h"
#include <signal.h>

int main(void) {
    ringtree_comm_t *comm;
    int rank, one = 1;
    OK(ringtree_comm_init_from_env(&comm));
    OK(ringtree_comm_rank(comm, &rank));
    OK(ringtree_barrier(comm));
    if (rank == 1) {
        raise(SIGKILL);
    }
    CHECK(ringtree_all_reduce(&one, &one, 1, RINGTREE_I32, RINGTREE_SUM, comm) ==
          RINGTREE_PEER_LOST);
    const ringtree_error_t *error = ringtree_last_error_details();
    printf("peer %d, %s #%d: %s\n", error->peer, error->operation ? error->operation : "none",
           (int)error->sequence, ringtree_last_error());
    OK(ringtree_comm_destroy(comm));
    return 0;
}

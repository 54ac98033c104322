/* Every rank contributes its numbers, and every rank gets the sums.
 *
 *   cc all_reduce.c $(pkg-config --cflags --libs ringtree) -o all_reduce
 *   ringtree run --nproc-per-node 4 -- ./all_reduce
 *
 * adapters/c/README.md explains how to install the library so that these commands find it.
 */
#include <ringtree.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT 1000

/* Prints the error and exits if a call has failed. */
static void check(ringtree_result_t result) {
    if (result != RINGTREE_SUCCESS) {
        fprintf(stderr, "%s\n", ringtree_last_error());
        exit(EXIT_FAILURE);
    }
}

int main(void) {
    ringtree_comm_t *comm;
    check(ringtree_comm_init_from_env_or_alone(&comm)); /* waits until every rank has joined */
    int rank, count;
    check(ringtree_comm_rank(comm, &rank));
    check(ringtree_comm_count(comm, &count));

    float gradients[COUNT];
    for (int i = 0; i < COUNT; i++) {
        gradients[i] = (float)(rank + i);
    }
    /* In place: the sums replace the numbers. */
    check(ringtree_all_reduce(gradients, gradients, COUNT, RINGTREE_F32, RINGTREE_SUM, comm));

    /* A started all-reduce runs in the background while this rank computes. */
    double loss = 1.0 / (rank + 1), mean;
    ringtree_work_t *work;
    check(ringtree_all_reduce_start(&loss, &mean, 1, RINGTREE_F64, RINGTREE_AVG, comm, &work));
    float largest = gradients[0];
    for (int i = 1; i < COUNT; i++) {
        largest = gradients[i] > largest ? gradients[i] : largest;
    }
    check(ringtree_work_wait(work));
    check(ringtree_work_free(work));

    if (rank == 0) {
        printf("%d ranks: the largest sum is %g, the mean loss %g\n", count, largest, mean);
    }
    check(ringtree_comm_destroy(comm)); /* leaves the group and notifies the other ranks */
    return EXIT_SUCCESS;
}

/* A forked child, such as a worker of a data loader, uses the handles that it has inherited. Its
 * calls return errors, and its parent is not affected. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 100000
#define F32 RINGTREE_F32
#define SUM RINGTREE_SUM

static int rank;
static ringtree_comm_t *world;
static volatile int is_over;

/* Looks up a handle repeatedly, so that the table is often locked when the process forks. */
static void *look_up(void *nothing) {
    int own;
    while (!is_over) {
        OK(ringtree_comm_rank(world, &own));
    }
    return nothing;
}

static void refused(ringtree_comm_t *comm, ringtree_work_t *work) {
    float x[4] = {100, 100, 100, 100};
    int own = -1, is_finished;
    ringtree_comm_t *other;
    ringtree_work_t *more;
    OK(ringtree_comm_rank(comm, &own));
    CHECK(own == rank);
    REFUSED(ringtree_all_reduce(x, x, 4, F32, SUM, comm), "forked");
    REFUSED(ringtree_barrier(comm), "forked");
    REFUSED(ringtree_send(x, 4, F32, 1 - rank, comm), "forked");
    REFUSED(ringtree_all_reduce_start(x, x, 4, F32, SUM, comm, &more), "forked");
    REFUSED(ringtree_comm_split(comm, 0, 0, &other), "forked");
    REFUSED(ringtree_comm_set_timeout_ms(comm, 5), "forked");
    REFUSED(ringtree_work_wait(work), "forked");
    REFUSED(ringtree_work_test(work, &is_finished), "forked");
    REFUSED(ringtree_work_wait_any(&work, 1, 0, &is_finished), "forked");
    ringtree_result_t found;
    REFUSED(ringtree_comm_get_async_error(comm, &found), "forked");
    OK(ringtree_work_free(work));
    REFUSED(ringtree_comm_abort(comm, "a child"), "forked");
    OK(ringtree_comm_destroy(comm));
}

static void child(ringtree_comm_t *comm, ringtree_work_t *work) {
    ringtree_config_t alone = RINGTREE_CONFIG_INITIALIZER;
    ringtree_comm_t *own;
    ringtree_work_t *more;
    float x = 1;
    alarm(20); /* kills the child if a call hangs */
    refused(comm, work);
    /* New handles of the child do not make the inherited handles valid. */
    alone.rank = 0;
    alone.world_size = 1;
    OK(ringtree_comm_init_config(&own, &alone));
    OK(ringtree_all_reduce_start(&x, &x, 1, F32, SUM, own, &more));
    refused(comm, work);
    OK(ringtree_work_wait(more));
    OK(ringtree_work_free(more));
    OK(ringtree_comm_destroy(own));
    exit(0);
}

int main(void) {
    ringtree_comm_t *comm;
    ringtree_work_t *work;
    float *many = malloc(COUNT * sizeof *many), one = 1;
    pthread_t thread;
    OK(ringtree_comm_init_from_env(&comm));
    OK(ringtree_comm_rank(comm, &rank));
    world = comm;
    CHECK(pthread_create(&thread, NULL, look_up, NULL) == 0);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < COUNT; i++) {
            many[i] = 1;
        }
        OK(ringtree_barrier(comm));
        OK(ringtree_all_reduce_start(many, many, COUNT, F32, SUM, comm, &work));
        pid_t forked = fork();
        CHECK(forked >= 0);
        if (forked == 0) {
            child(comm, work);
        }
        int status;
        CHECK(waitpid(forked, &status, 0) == forked);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        OK(ringtree_work_wait(work));
        OK(ringtree_work_free(work));
        CHECK(many[0] == 2 && many[COUNT - 1] == 2);
        one = 1;
        OK(ringtree_all_reduce(&one, &one, 1, F32, SUM, comm));
        CHECK(one == 2);
    }
    is_over = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    OK(ringtree_comm_destroy(comm));
    free(many);
    return 0;
}

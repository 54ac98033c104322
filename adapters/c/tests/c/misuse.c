/* Each invalid argument returns an error with a message, and the communicator continues to work. */
#include "check.h"

#define I32 RINGTREE_I32
#define SUM RINGTREE_SUM

static int rank, ranks;

/* Returns the number. A cast of the result to an enum type may have a value that the enum does not
 * define, as in a program that computes the value. */
static int computed(int number) { return number; }

static void handles(ringtree_comm_t *comm) {
    int x = 1, is_finished;
    ringtree_comm_t *other = NULL, *made_up = (ringtree_comm_t *)&x;
    ringtree_work_t *work = NULL;
    REFUSED(ringtree_comm_rank(NULL, &x), "NULL");
    REFUSED(ringtree_comm_rank(comm, NULL), "NULL");
    ringtree_result_t found;
    REFUSED(ringtree_comm_get_async_error(NULL, &found), "NULL");
    REFUSED(ringtree_comm_get_async_error(comm, NULL), "NULL");
    REFUSED(ringtree_comm_rank(made_up, &x), "not a valid handle");
    REFUSED(ringtree_barrier((ringtree_comm_t *)(uintptr_t)1), "not a valid handle");
    REFUSED(ringtree_work_wait((ringtree_work_t *)comm), "not a valid handle");
    REFUSED(ringtree_work_test(NULL, &is_finished), "NULL");
    OK(ringtree_comm_split(comm, 0, 0, &other));
    OK(ringtree_comm_destroy(other));
    REFUSED(ringtree_comm_destroy(other), "destroyed");
    REFUSED(ringtree_all_reduce(&x, &x, 1, I32, SUM, other), "destroyed");
    REFUSED(ringtree_comm_abort(other, "no"), "destroyed");
    REFUSED(ringtree_comm_set_timeout_ms(other, 1), "destroyed");
    ringtree_work_t *works[2] = {NULL, (ringtree_work_t *)comm};
    REFUSED(ringtree_work_wait_any(works, 2, 0, &x), "not a valid handle");
    CHECK(x == -1);
    REFUSED(ringtree_work_wait_any(works, 2, 0, NULL), "NULL");
    REFUSED(ringtree_work_wait_any(NULL, 2, 0, &x), "works is NULL");
    REFUSED(ringtree_work_wait_any(works, (size_t)-1, 0, &x), "exceeds the address space");
    is_finished = 7;
    REFUSED(ringtree_work_wait_for(NULL, 0, &is_finished), "NULL");
    CHECK(!is_finished);
    REFUSED(ringtree_work_wait_for(works[1], 0, NULL), "NULL");
    x = 1;
    OK(ringtree_comm_destroy(NULL));
    OK(ringtree_all_reduce_start(&x, &x, 1, I32, SUM, comm, &work));
    OK(ringtree_work_wait(work));
    OK(ringtree_work_wait(work));
    OK(ringtree_work_test(work, &is_finished));
    CHECK(is_finished && x == ranks);
    OK(ringtree_work_free(work));
    REFUSED(ringtree_work_free(work), "freed");
    REFUSED(ringtree_work_wait(work), "freed");
    OK(ringtree_work_free(NULL));
    REFUSED(ringtree_all_reduce_start(&x, &x, 1, I32, SUM, comm, NULL), "NULL");
    work = (ringtree_work_t *)comm;
    REFUSED(ringtree_all_reduce_start(NULL, &x, 1, I32, SUM, comm, &work), "send is NULL");
    CHECK(work == NULL);
    work = (ringtree_work_t *)comm;
    REFUSED(ringtree_send_start(&x, 1, I32, -1, comm, &work), "peer");
    CHECK(work == NULL);
}

static void numbers(ringtree_comm_t *comm) {
    int x[2] = {1, 2};
    ringtree_comm_t *none;
    const int roots[] = {-1, ranks, 1000000};
    for (int i = 0; i < 3; i++) {
        REFUSED(ringtree_broadcast(x, x, 1, I32, roots[i], comm), "root");
        REFUSED(ringtree_reduce(x, x, 1, I32, SUM, roots[i], comm), "root");
        REFUSED(ringtree_gather(x, x, 1, I32, roots[i], comm), "root");
        REFUSED(ringtree_scatter(x, x, 1, I32, roots[i], comm), "root");
        REFUSED(ringtree_send(x, 1, I32, roots[i], comm), "peer");
        REFUSED(ringtree_recv(x, 1, I32, roots[i], comm), "peer");
        REFUSED(ringtree_comm_subgroup(comm, &roots[i], 1, &none), "member");
        REFUSED(ringtree_comm_subgroup(comm, NULL, 1, &none), "members is NULL");
    }
    REFUSED(ringtree_send(x, 1, I32, rank, comm), "itself");
    const int types[] = {-1, 12, 266, 1 << 30};
    for (int i = 0; i < 4; i++) {
        ringtree_dtype_t dtype = (ringtree_dtype_t)computed(types[i]);
        ringtree_op_t op = (ringtree_op_t)computed(types[i]);
        REFUSED(ringtree_all_reduce(x, x, 1, dtype, SUM, comm), "ringtree_dtype_t");
        REFUSED(ringtree_send(x, 1, dtype, rank ^ 1, comm), "ringtree_dtype_t");
        REFUSED(ringtree_all_reduce(x, x, 1, I32, op, comm), "ringtree_op_t");
    }
    float f[2] = {0};
    REFUSED(ringtree_all_reduce(f, f, 2, RINGTREE_F32, RINGTREE_BOR, comm), "bor");
    REFUSED(ringtree_comm_split(comm, -2, 0, &none), "color");
    CHECK(strcmp(ringtree_result_string(RINGTREE_PEER_LOST), "a rank was lost") == 0);
    CHECK(strstr(ringtree_result_string(RINGTREE_SYSTEM), "unavailable") != NULL);
    CHECK(strstr(ringtree_result_string((ringtree_result_t)computed(77)), "not a ") != NULL);
}

static void memory(ringtree_comm_t *comm) {
    int x[16] = {0};
    const size_t most = (size_t)-1;
    REFUSED(ringtree_all_reduce(NULL, x, 4, I32, SUM, comm), "send is NULL");
    REFUSED(ringtree_all_reduce(x, NULL, 4, I32, SUM, comm), "recv is NULL");
    REFUSED(ringtree_broadcast(NULL, NULL, 4, I32, 0, comm), "recv is NULL");
    REFUSED(ringtree_send(NULL, 4, I32, rank ^ 1, comm), "send is NULL");
    REFUSED(ringtree_recv(NULL, 4, I32, rank ^ 1, comm), "recv is NULL");
    REFUSED(ringtree_all_reduce((char *)x + 1, x, 4, I32, SUM, comm), "send: the buffer at ");
    REFUSED(ringtree_all_reduce((char *)x + 1, (char *)x + 1, 4, I32, SUM, comm), "aligned");
    REFUSED(ringtree_all_reduce(x, x + 1, 4, I32, SUM, comm), "overlap");
    REFUSED(ringtree_all_reduce(x + 3, x, 4, I32, SUM, comm), "overlap");
    REFUSED(ringtree_all_to_all(x + 1, x, 4, I32, comm), "overlap");
    REFUSED(ringtree_all_gather(x + 4 * ranks - 1, x, 4, I32, comm), "overlap");
    REFUSED(ringtree_reduce_scatter(x, x + 4 * ranks - 1, 4, I32, SUM, comm), "overlap");
    REFUSED(ringtree_all_reduce(x, x, most, I32, SUM, comm), "exceeds the address space");
    REFUSED(ringtree_all_reduce(x, x, most / 8, I32, SUM, comm), "exceeds the address space");
    REFUSED(ringtree_all_gather(x, x, most / 2 + 1, I32, comm), "exceeds the address space");
    REFUSED(ringtree_all_gather(x, x, most, RINGTREE_U8, comm), "exceeds the address space");
    size_t counts[8] = {most, most};
    REFUSED(ringtree_all_to_all_v(x, counts, x, counts, I32, comm), "exceeds the address space");
    REFUSED(ringtree_all_to_all_v(x, NULL, x, counts, I32, comm), "send_counts is NULL");
    REFUSED(ringtree_all_to_all_v(x, counts, x, NULL, I32, comm), "recv_counts is NULL");
    REFUSED(ringtree_gather_v(x, x, NULL, I32, 0, comm), "recv_counts is NULL");
    REFUSED(ringtree_gather_v(x, x, counts, I32, 0, comm), "exceeds the address space");
    REFUSED(ringtree_scatter_v(x, NULL, x, I32, 0, comm), "send_counts is NULL");
    size_t few[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    REFUSED(ringtree_all_gather_v(x + (rank + 1) % ranks, x, few, I32, comm), "overlap");
    REFUSED(ringtree_all_to_all_v(x, few, x, few, I32, comm), "overlap");
    /* If the count is 0, the pointers are not checked. */
    OK(ringtree_all_reduce(NULL, NULL, 0, I32, SUM, comm));
    OK(ringtree_all_gather(NULL, NULL, 0, I32, comm));
    ringtree_work_t *work;
    OK(ringtree_scatter_start(NULL, NULL, 0, I32, 0, comm, &work));
    OK(ringtree_work_wait(work));
    OK(ringtree_work_free(work));
    REFUSED(ringtree_gather_start(x, x, most / 8, I32, rank, comm, &work), "address space");
}

/* A program may print the kind of an error before the message, so the message must not repeat the
 * kind. */
static void mismatch(ringtree_comm_t *comm) {
    ringtree_comm_t *group;
    int x = 1;
    OK(ringtree_comm_split(comm, 0, 0, &group));
    ringtree_result_t result = rank == 0 ? ringtree_all_reduce(&x, &x, 1, I32, SUM, group)
                                         : ringtree_barrier(group);
    CHECK(result == RINGTREE_MISMATCH);
    CHECK(strstr(ringtree_last_error(), "the ranks made different calls: ") != NULL);
    CHECK(strstr(ringtree_last_error(), ringtree_result_string(result)) == NULL);
    OK(ringtree_comm_destroy(group));
}

int main(void) {
    ringtree_comm_t *comm;
    CHECK(ringtree_last_error_details() == NULL && ringtree_last_error()[0] == '\0');
    REFUSED(ringtree_comm_init_from_env(NULL), "NULL");
    REFUSED(ringtree_comm_init_at(&comm, 2, NULL, 0), "NULL");
    REFUSED(ringtree_comm_init_at(&comm, -2, "127.0.0.1:1", 0), "world_size -2");
    REFUSED(ringtree_comm_init_at(&comm, 2, "127.0.0.1:1", -1), "ranks start at 0");
    REFUSED(ringtree_comm_init_rank(&comm, 2, NULL, 0), "NULL");
    CHECK(comm == NULL && ringtree_last_error_details()->result == RINGTREE_USAGE);
    CHECK(ringtree_comm_init_at(&comm, 2, "nowhere", 0) == RINGTREE_CONFIGURATION);
    ringtree_unique_id_t id = {{1}};
    CHECK(ringtree_comm_init_rank(&comm, 2, &id, 0) == RINGTREE_CONFIGURATION);

    OK(ringtree_comm_init_from_env(&comm));
    OK(ringtree_comm_rank(comm, &rank));
    OK(ringtree_comm_count(comm, &ranks));
    handles(comm);
    numbers(comm);
    memory(comm);
    mismatch(comm);
    int one = 1;
    OK(ringtree_all_reduce(&one, &one, 1, I32, SUM, comm));
    CHECK(one == ranks);
    OK(ringtree_comm_destroy(comm));
    return 0;
}

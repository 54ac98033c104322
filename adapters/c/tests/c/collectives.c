/* Tests every call in its blocking and its asynchronous form, in place and between two buffers. */
#include "check.h"

#define BLOCK 3
#define RANKS_MAX 8
#define ALL (BLOCK * RANKS_MAX)

static ringtree_comm_t *comm;
static int rank, ranks;

/* Returns the element that rank `of` contributes at index `at` of its buffer. */
static int number(int of, int at) { return 100 * of + at; }

static void fill(int *buffer, int count) {
    for (int i = 0; i < count; i++) {
        buffer[i] = number(rank, i);
    }
}

/* Returns the sum of all ranks' elements at index `at`. */
static int sum(int at) {
    int total = 0;
    for (int of = 0; of < ranks; of++) {
        total += number(of, at);
    }
    return total;
}

/* Polls the work until it is finished, then waits for it and frees it. */
static void finish(ringtree_work_t *work) {
    int is_finished = 0;
    while (!is_finished) {
        OK(ringtree_work_test(work, &is_finished));
    }
    OK(ringtree_work_wait(work));
    OK(ringtree_work_free(work));
}

/* Issues the blocking call, or starts the asynchronous call and waits for it. */
#define CALL(is_started, name, ...)                                                              \
    do {                                                                                         \
        ringtree_work_t *work = NULL;                                                            \
        if (is_started) {                                                                        \
            OK(ringtree_##name##_start(__VA_ARGS__, comm, &work));                               \
            finish(work);                                                                        \
        } else {                                                                                 \
            OK(ringtree_##name(__VA_ARGS__, comm));                                              \
        }                                                                                        \
    } while (0)

static void reductions(int is_started, int is_in_place, int root) {
    int send[ALL], recv[ALL], all = BLOCK * ranks;
    int *to = is_in_place ? send : recv;
    fill(send, BLOCK);
    CALL(is_started, all_reduce, send, to, BLOCK, RINGTREE_I32, RINGTREE_SUM);
    for (int i = 0; i < BLOCK; i++) {
        CHECK(to[i] == sum(i));
        CHECK(is_in_place || send[i] == number(rank, i));
    }
    fill(send, BLOCK);
    CALL(is_started, reduce, send, rank == root ? to : NULL, BLOCK, RINGTREE_I32, RINGTREE_SUM,
         root);
    for (int i = 0; i < BLOCK; i++) {
        CHECK(rank != root || to[i] == sum(i));
        CHECK((rank == root && is_in_place) || send[i] == number(rank, i));
    }
    fill(send, all);
    to = is_in_place ? send + BLOCK * rank : recv;
    CALL(is_started, reduce_scatter, send, to, BLOCK, RINGTREE_I32, RINGTREE_SUM);
    for (int i = 0; i < BLOCK; i++) {
        CHECK(to[i] == sum(BLOCK * rank + i));
    }
}

static void moves(int is_started, int is_in_place, int root) {
    int send[ALL], recv[ALL], all = BLOCK * ranks;
    int is_root = rank == root;
    fill(send, BLOCK);
    int *to = is_in_place ? send : recv;
    CALL(is_started, broadcast, is_root ? send : NULL, to, BLOCK, RINGTREE_I32, root);
    for (int i = 0; i < BLOCK; i++) {
        CHECK(to[i] == number(root, i));
    }
    fill(recv, all);
    fill(send, all);
    int *from = is_in_place ? recv + BLOCK * rank : send + BLOCK * rank;
    CALL(is_started, all_gather, from, recv, BLOCK, RINGTREE_I32);
    for (int i = 0; i < all; i++) {
        CHECK(recv[i] == number(i / BLOCK, i));
    }
    fill(recv, all);
    CALL(is_started, gather, is_root ? from : send + BLOCK * rank, is_root ? recv : NULL, BLOCK,
         RINGTREE_I32, root);
    for (int i = 0; is_root && i < all; i++) {
        CHECK(recv[i] == number(i / BLOCK, i));
    }
    to = is_in_place && is_root ? send + BLOCK * rank : recv;
    CALL(is_started, scatter, is_root ? send : NULL, to, BLOCK, RINGTREE_I32, root);
    for (int i = 0; i < BLOCK; i++) {
        CHECK(to[i] == number(root, BLOCK * rank + i));
    }
    for (int i = 0; i < all; i++) {
        CHECK(send[i] == number(rank, i));
    }
    to = is_in_place ? send : recv;
    CALL(is_started, all_to_all, send, to, BLOCK, RINGTREE_I32);
    for (int i = 0; i < all; i++) {
        CHECK(to[i] == number(i / BLOCK, BLOCK * rank + i % BLOCK));
    }
}

/* Rank i has i elements for each rank, so rank 0 has none. Odd ranks operate in place in the calls
 * that allow it. */
static void uneven(int is_started, int root) {
    size_t own[RANKS_MAX], counts[RANKS_MAX];
    int send[RANKS_MAX * RANKS_MAX], recv[RANKS_MAX * RANKS_MAX], at = 0;
    int start = rank * (rank - 1) / 2, all = ranks * (ranks - 1) / 2, is_root = rank == root;
    for (int i = 0; i < ranks; i++) {
        own[i] = (size_t)rank;
        counts[i] = (size_t)i;
    }
    fill(send, RANKS_MAX * RANKS_MAX);
    CALL(is_started, all_to_all_v, send, own, recv, counts, RINGTREE_I32);
    for (int from = 0; from < ranks; from++) {
        for (int i = 0; i < from; i++) {
            CHECK(recv[at++] == number(from, from * rank + i));
        }
    }
    fill(recv, all);
    int *block = rank % 2 ? recv + start : send + start;
    CALL(is_started, all_gather_v, block, recv, counts, RINGTREE_I32);
    at = 0;
    for (int from = 0; from < ranks; from++) {
        for (int i = 0; i < from; i++, at++) {
            CHECK(recv[at] == number(from, at));
        }
    }
    fill(recv, all);
    block = rank % 2 && is_root ? recv + start : send + start;
    CALL(is_started, gather_v, block, is_root ? recv : NULL, counts, RINGTREE_I32, root);
    at = 0;
    for (int from = 0; is_root && from < ranks; from++) {
        for (int i = 0; i < from; i++, at++) {
            CHECK(recv[at] == number(from, at));
        }
    }
    block = rank % 2 && is_root ? send + start : recv;
    CALL(is_started, scatter_v, is_root ? send : NULL, counts, block, RINGTREE_I32, root);
    for (int i = 0; i < rank; i++) {
        CHECK(block[i] == number(root, start + i) && send[i] == number(rank, i));
    }
    block = rank % 2 ? send + start : recv;
    CALL(is_started, reduce_scatter_v, send, counts, block, RINGTREE_I32, RINGTREE_SUM);
    for (int i = 0; i < rank; i++) {
        CHECK(block[i] == sum(start + i));
    }
}

static void messages(void) {
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    if (ranks == 1) {
        return; /* a rank cannot send to itself */
    }
    int send[2] = {rank, 7}, recv[2] = {-1, -1};
    ringtree_work_t *sent, *received;
    OK(ringtree_send_start(send, 2, RINGTREE_I32, right, comm, &sent));
    OK(ringtree_recv_start(recv, 2, RINGTREE_I32, left, comm, &received));
    OK(ringtree_work_wait(received));
    OK(ringtree_work_wait(sent));
    OK(ringtree_work_free(received));
    OK(ringtree_work_free(sent));
    CHECK(recv[0] == left && recv[1] == 7);
    double token = 0.5;
    if (rank > 0) {
        OK(ringtree_recv(&token, 1, RINGTREE_F64, left, comm));
    }
    token += 1;
    if (right > 0) {
        OK(ringtree_send(&token, 1, RINGTREE_F64, right, comm));
    }
    CHECK(token == rank + 1.5);
}

/* Tests waiting with a time limit and waiting for any of several operations. */
static void time_limits(void) {
    int peer = rank ^ 1, theirs = -1, one = 1, index = 7, is_finished = 7;
    ringtree_work_t *works[3] = {NULL, NULL, NULL};
    OK(ringtree_work_wait_any(works, 3, -1, &index));
    CHECK(index == -1);
    OK(ringtree_work_wait_any(NULL, 0, -1, &index));
    CHECK(index == -1);
    if (peer >= ranks) {
        OK(ringtree_all_reduce(&one, &one, 1, RINGTREE_I32, RINGTREE_SUM, comm));
        OK(ringtree_barrier(comm));
        return;
    }
    OK(ringtree_recv_start(&theirs, 1, RINGTREE_I32, peer, comm, &works[0]));
    OK(ringtree_work_wait_for(works[0], 1, &is_finished));
    CHECK(!is_finished);
    OK(ringtree_work_wait_any(works, 3, 1, &index));
    CHECK(index == -1);
    OK(ringtree_all_reduce_start(&one, &one, 1, RINGTREE_I32, RINGTREE_SUM, comm, &works[2]));
    OK(ringtree_work_wait_any(works, 3, -1, &index));
    CHECK(index == 2 && one == ranks);
    OK(ringtree_work_free(works[2]));
    works[2] = NULL;
    OK(ringtree_barrier(comm)); /* no rank sends before all ranks have waited */
    OK(ringtree_send(&rank, 1, RINGTREE_I32, peer, comm));
    OK(ringtree_work_wait_for(works[0], 60000, &is_finished)); /* the limits did not cancel it */
    CHECK(is_finished && theirs == peer);
    OK(ringtree_work_wait_any(works, 3, 0, &index));
    CHECK(index == 0);
    OK(ringtree_work_free(works[0]));
}

/* Tests that the library interprets every type and operator of the header correctly. */
static void types(void) {
    int8_t i8 = -1;
    uint8_t u8 = 1;
    int16_t i16 = -300;
    uint16_t u16 = 60000 / 8, f16 = 0x3c00, bf16 = 0x3f80;
    int32_t i32 = -70000;
    uint32_t u32 = 400000000;
    int64_t i64 = -5000000000;
    uint64_t u64 = 1ull << 60;
    float f32 = 0.25f;
    double f64 = 1e300;
    OK(ringtree_all_reduce(&i8, &i8, 1, RINGTREE_I8, RINGTREE_SUM, comm));
    OK(ringtree_all_reduce(&u8, &u8, 1, RINGTREE_U8, RINGTREE_SUM, comm));
    OK(ringtree_all_reduce(&i16, &i16, 1, RINGTREE_I16, RINGTREE_SUM, comm));
    OK(ringtree_all_reduce(&u16, &u16, 1, RINGTREE_U16, RINGTREE_SUM, comm));
    OK(ringtree_all_reduce(&i32, &i32, 1, RINGTREE_I32, RINGTREE_SUM, comm));
    OK(ringtree_all_reduce(&u32, &u32, 1, RINGTREE_U32, RINGTREE_SUM, comm));
    OK(ringtree_all_reduce(&i64, &i64, 1, RINGTREE_I64, RINGTREE_SUM, comm));
    OK(ringtree_all_reduce(&u64, &u64, 1, RINGTREE_U64, RINGTREE_MAX, comm));
    OK(ringtree_all_reduce(&f16, &f16, 1, RINGTREE_F16, RINGTREE_AVG, comm));
    OK(ringtree_all_reduce(&bf16, &bf16, 1, RINGTREE_BF16, RINGTREE_AVG, comm));
    OK(ringtree_all_reduce(&f32, &f32, 1, RINGTREE_F32, RINGTREE_SUM, comm));
    OK(ringtree_all_reduce(&f64, &f64, 1, RINGTREE_F64, RINGTREE_MIN, comm));
    CHECK(i8 == -ranks && u8 == ranks && i16 == -300 * ranks && u16 == 7500 * ranks);
    CHECK(i32 == -70000 * ranks && u32 == 400000000u * (uint32_t)ranks);
    CHECK(i64 == -5000000000 * ranks && u64 == 1ull << 60);
    CHECK(f16 == 0x3c00 && bf16 == 0x3f80 && f32 == 0.25f * (float)ranks && f64 == 1e300);
    uint32_t bits[3] = {1u << rank, ~(1u << rank), 3}, product = 2;
    OK(ringtree_all_reduce(&bits[0], &bits[0], 1, RINGTREE_U32, RINGTREE_BOR, comm));
    OK(ringtree_all_reduce(&bits[1], &bits[1], 1, RINGTREE_U32, RINGTREE_BAND, comm));
    OK(ringtree_all_reduce(&bits[2], &bits[2], 1, RINGTREE_U32, RINGTREE_BXOR, comm));
    OK(ringtree_all_reduce(&product, &product, 1, RINGTREE_U32, RINGTREE_PROD, comm));
    uint32_t each = (1u << ranks) - 1;
    CHECK(bits[0] == each && bits[1] == ~each && bits[2] == (ranks % 2 ? 3u : 0u));
    CHECK(product == 1u << ranks);
}

static void groups(void) {
    ringtree_comm_t *half, *reversed, *none;
    int own, count;
    OK(ringtree_comm_split(comm, rank % 2, -rank, &half));
    OK(ringtree_comm_rank(half, &own));
    OK(ringtree_comm_count(half, &count));
    CHECK(count == (ranks + 1 - rank % 2) / 2 && own == count - 1 - rank / 2);
    int highest = rank;
    OK(ringtree_broadcast(&highest, &highest, 1, RINGTREE_I32, 0, half));
    CHECK(highest % 2 == rank % 2 && highest >= ranks - 2);
    OK(ringtree_comm_destroy(half));
    int members[RANKS_MAX];
    for (int i = 0; i < ranks; i++) {
        members[i] = ranks - 1 - i;
    }
    OK(ringtree_comm_subgroup(comm, members, (size_t)ranks, &reversed));
    OK(ringtree_comm_rank(reversed, &own));
    CHECK(own == ranks - 1 - rank);
    OK(ringtree_comm_destroy(reversed));
    OK(ringtree_comm_split(comm, RINGTREE_SPLIT_NOCOLOR, 0, &none));
    CHECK(none == NULL);
}

/* Creates another world with an id that rank 0 broadcasts. */
static void another_world(void) {
    ringtree_unique_id_t id = {{0}};
    ringtree_comm_t *world;
    if (rank == 0) {
        OK(ringtree_get_unique_id(&id));
    }
    OK(ringtree_broadcast(&id, &id, sizeof id, RINGTREE_U8, 0, comm));
    OK(ringtree_comm_init_rank(&world, ranks, &id, rank));
    int one = 1;
    OK(ringtree_all_reduce(&one, &one, 1, RINGTREE_I32, RINGTREE_SUM, world));
    CHECK(one == ranks);
    OK(ringtree_comm_destroy(world));
}

int main(void) {
    OK(ringtree_comm_init_from_env(&comm));
    OK(ringtree_comm_rank(comm, &rank));
    OK(ringtree_comm_count(comm, &ranks));
    CHECK(ranks <= RANKS_MAX);
    for (int which = 0; which < 4; which++) {
        for (int root = 0; root < ranks; root++) {
            reductions(which % 2, which / 2, root);
            moves(which % 2, which / 2, root);
            uneven(which % 2, root);
        }
    }
    types();
    messages();
    time_limits();
    groups();
    another_world();
    OK(ringtree_barrier(comm));
    OK(ringtree_comm_destroy(comm));
    return 0;
}

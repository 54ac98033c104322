/* ringtree for C: collectives over processes, on one machine or several.
 *
 * This file is generated (adapters/c/README.md says how); change the Rust sources instead.
 *
 * Functions. Those that can fail return a ringtree_result_t; ringtree_last_error() has the story.
 * After any error but RINGTREE_USAGE the communicator cannot be used any more: every later call on
 * it returns the same first error, and buffers that the call was to write are unspecified.
 *
 * Pointers. A pointer is NULL, or leads to what the parameter says: `count` elements of `dtype`,
 * aligned for it, in host memory, for as long as the call lasts. NULL is refused, but for buffers
 * of no elements and where a rank's buffer is not looked at. `send` and `recv` lie apart, or exactly
 * as the call in place has them; other overlaps are refused.
 *
 * Handles. A ringtree_comm_t and a ringtree_work_t are used by their pointers alone, which lead
 * nowhere. One that was destroyed, or is none, is refused with RINGTREE_USAGE.
 *
 * Threads. Any thread may call any function, several of them at once. Calls on one communicator
 * begin in the order in which they are made, which must be the same on all ranks; threads that
 * share a communicator see to that themselves. The last error is each thread's own. No function may
 * be called in a signal handler.
 *
 * Children. A process that calls fork() goes on as before. In its child every call on what it has
 * inherited is refused with RINGTREE_USAGE and reaches no other rank, and to destroy or to free it does
 * nothing. A child that was made without the C library's fork(), by a bare clone(), is not recognized
 * and must make no calls.
 */

#ifndef RINGTREE_H
#define RINGTREE_H

#include <stddef.h>
#include <stdint.h>

/**
 * The version that this header is of; ringtree_version() says which library is loaded.
 */
#define RINGTREE_VERSION_MAJOR 0

/**
 * See RINGTREE_VERSION_MAJOR.
 */
#define RINGTREE_VERSION_MINOR 1

/**
 * See RINGTREE_VERSION_MAJOR.
 */
#define RINGTREE_VERSION_PATCH 0

/**
 * The length of a ringtree_unique_id_t.
 */
#define RINGTREE_UNIQUE_ID_BYTES 80

/**
 * The colour of a rank that is to be in none of the groups of a split.
 */
#define RINGTREE_SPLIT_NOCOLOR -1

/**
 * How a call ended.
 */
typedef enum {
    /**
     * It did what it should.
     */
    RINGTREE_SUCCESS = 0,
    /**
     * The call itself was wrong, and nothing was sent. Correct the call; the communicator is fine.
     */
    RINGTREE_USAGE = 1,
    /**
     * A setting is missing or malformed. Correct the setting that the message names.
     */
    RINGTREE_CONFIGURATION = 2,
    /**
     * The ranks could not be brought together. The message names what to check; start again.
     */
    RINGTREE_JOIN = 3,
    /**
     * Ranks made different calls. All ranks make the calls of a communicator in the same order.
     */
    RINGTREE_MISMATCH = 4,
    /**
     * A rank died, left while another needed it, or aborted. Start again from a checkpoint.
     */
    RINGTREE_PEER_LOST = 5,
    /**
     * A call did not end in time. Look at the ranks that the message names.
     */
    RINGTREE_DEADLINE = 6,
    /**
     * A peer sent bytes that belong to no call. Report it.
     */
    RINGTREE_PROTOCOL = 7,
    /**
     * The system refused something. The message names what, and why.
     */
    RINGTREE_SYSTEM = 8,
} ringtree_result_t;

/**
 * The type of an element.
 */
typedef enum {
    /**
     * int8_t
     */
    RINGTREE_I8 = 0,
    /**
     * uint8_t, and any byte that is only moved
     */
    RINGTREE_U8 = 1,
    /**
     * int16_t
     */
    RINGTREE_I16 = 2,
    /**
     * uint16_t
     */
    RINGTREE_U16 = 3,
    /**
     * int32_t
     */
    RINGTREE_I32 = 4,
    /**
     * uint32_t
     */
    RINGTREE_U32 = 5,
    /**
     * int64_t
     */
    RINGTREE_I64 = 6,
    /**
     * uint64_t
     */
    RINGTREE_U64 = 7,
    /**
     * IEEE 754 half precision
     */
    RINGTREE_F16 = 8,
    /**
     * bfloat16
     */
    RINGTREE_BF16 = 9,
    /**
     * float
     */
    RINGTREE_F32 = 10,
    /**
     * double
     */
    RINGTREE_F64 = 11,
} ringtree_dtype_t;

/**
 * How contributions are combined, element by element.
 */
typedef enum {
    /**
     * The sum; integers wrap.
     */
    RINGTREE_SUM = 0,
    /**
     * The product; integers wrap.
     */
    RINGTREE_PROD = 1,
    /**
     * The smallest.
     */
    RINGTREE_MIN = 2,
    /**
     * The largest.
     */
    RINGTREE_MAX = 3,
    /**
     * The mean; integers truncate.
     */
    RINGTREE_AVG = 4,
    /**
     * Bitwise and; integers only.
     */
    RINGTREE_BAND = 5,
    /**
     * Bitwise or; integers only.
     */
    RINGTREE_BOR = 6,
    /**
     * Bitwise exclusive or; integers only.
     */
    RINGTREE_BXOR = 7,
} ringtree_op_t;

/**
 * A group of ranks that work together.
 */
typedef struct ringtree_comm_t ringtree_comm_t;

/**
 * A call that goes on while the program does something else.
 */
typedef struct ringtree_work_t ringtree_work_t;

/**
 * What is known of an error, besides its line.
 */
typedef struct {
    /**
     * What kind it is.
     */
    ringtree_result_t result;
    /**
     * The rank that saw it, or -1.
     */
    int rank;
    /**
     * The rank that it is about, such as the one that died, or -1.
     */
    int peer;
    /**
     * The number of ranks in `missing`.
     */
    int missing_count;
    /**
     * The ranks that hold up what did not end in time.
     */
    const int *missing;
    /**
     * The collective in which it happened, such as "all-reduce"; NULL for a message, and where it
     * is not known.
     */
    const char *operation;
    /**
     * The number of that call, from 1, or 0.
     */
    uint64_t sequence;
    /**
     * How long it had been under way in milliseconds, where it ran out of time, or 0.
     */
    uint64_t elapsed_ms;
    /**
     * One line for people, which names all of the above, the cause and what to do next.
     */
    const char *message;
} ringtree_error_t;

/**
 * All that the ranks of one world need to find each other, and no stranger: an address and a
 * secret. A process that has it can join as any rank, so hand it on by private means.
 */
typedef struct {
    /**
     * The id; the secret is among them.
     */
    uint8_t bytes[RINGTREE_UNIQUE_ID_BYTES];
} ringtree_unique_id_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library that is loaded, such as "0.1.0".
 */
const char *ringtree_version(void);

/**
 * What a result means, in a few words that never change; ringtree_last_error() has the story.
 */
const char *ringtree_result_string(ringtree_result_t result);

/**
 * The whole story of the last call of this thread that failed, in one line: the ranks, the call,
 * the cause and what to do next. Empty if none has failed. It stays until the next call of this
 * thread fails, or the thread ends.
 */
const char *ringtree_last_error(void);

/**
 * The same error with what is known of it in fields; NULL if no call of this thread has failed. It
 * stays as long as the line does.
 */
const ringtree_error_t *ringtree_last_error_details(void);

/**
 * Joins all ranks, as the variables that `ringtree run` and torchrun set say. Waits until every
 * rank has come, at most RINGTREE_TIMEOUT_MS.
 */
ringtree_result_t ringtree_comm_init_from_env(ringtree_comm_t **comm);

/**
 * The same; or, in a program that no launcher has started, one rank alone.
 */
ringtree_result_t ringtree_comm_init_from_env_or_alone(ringtree_comm_t **comm);

/**
 * Makes an id for a world, on the host of its rank 0. The program hands it on to all ranks, each
 * of which gives it to ringtree_comm_init_rank(). Each world takes an id of its own. The port in
 * it is kept free until rank 0, in this process, has joined.
 */
ringtree_result_t ringtree_get_unique_id(ringtree_unique_id_t *id);

/**
 * Joins the world of this id as `rank` of `world_size`. Waits until every rank has come.
 */
ringtree_result_t ringtree_comm_init_rank(ringtree_comm_t **comm,
                                          int world_size,
                                          const ringtree_unique_id_t *id,
                                          int rank);

/**
 * Joins as `rank` of `world_size` at `rendezvous`, the "host:port" at which rank 0 listens. Between
 * hosts, RINGTREE_SECRET or RINGTREE_SECRET_FILE must be set. Waits until every rank has come.
 */
ringtree_result_t ringtree_comm_init_at(ringtree_comm_t **comm,
                                        int world_size,
                                        const char *rendezvous,
                                        int rank);

/**
 * This process's number in the communicator, from 0.
 */
ringtree_result_t ringtree_comm_rank(ringtree_comm_t *comm, int *rank);

/**
 * How many ranks the communicator has.
 */
ringtree_result_t ringtree_comm_count(ringtree_comm_t *comm, int *count);

/**
 * This process's number on its host, from 0: the same in every communicator.
 */
ringtree_result_t ringtree_comm_local_rank(ringtree_comm_t *comm, int *local_rank);

/**
 * How long each later call on this handle may take, in milliseconds, before it ends with
 * RINGTREE_DEADLINE on all ranks; 0 for as long as it takes. At first it is RINGTREE_TIMEOUT_MS, or
 * five minutes.
 */
ringtree_result_t ringtree_comm_set_timeout_ms(ringtree_comm_t *comm, uint64_t timeout_ms);

/**
 * Makes a communicator of the ranks that give the same `color`, numbered by `key`, and where keys
 * are equal by their ranks here. All ranks of `comm` call it. A rank that gives
 * RINGTREE_SPLIT_NOCOLOR is in none, and gets NULL.
 */
ringtree_result_t ringtree_comm_split(ringtree_comm_t *comm,
                                      int color,
                                      int key,
                                      ringtree_comm_t **new_comm);

/**
 * Makes a communicator of the `count` ranks of this list, numbered in its order. Its members alone
 * call this.
 */
ringtree_result_t ringtree_comm_subgroup(ringtree_comm_t *comm,
                                         const int *members,
                                         size_t count,
                                         ringtree_comm_t **new_comm);

/**
 * Gives up: every call under way and every later one ends, on all ranks, with an error that names
 * this rank and the `reason`, which may be NULL. Destroys the handle. Any thread may call it, also
 * while others wait in calls.
 */
ringtree_result_t ringtree_comm_abort(ringtree_comm_t *comm, const char *reason);

/**
 * Leaves, and destroys the handle: what was sent is delivered, then the other ranks are told. Calls
 * of other threads and work under way go on to their ends, and the other ranks are told after the
 * last of them; work stays to be waited for and freed. A program that ends without it looks to the
 * other ranks like one that died. NULL is ignored, and so is all in a child that was forked from
 * the process that joined.
 */
ringtree_result_t ringtree_comm_destroy(ringtree_comm_t *comm);

/**
 * Every rank's `recv` becomes the reduction of all ranks' `send`, element by element: `count` of
 * them. In place if both are the same.
 */
ringtree_result_t ringtree_all_reduce(const void *send,
                                      void *recv,
                                      size_t count,
                                      ringtree_dtype_t dtype,
                                      ringtree_op_t op,
                                      ringtree_comm_t *comm);

/**
 * Every rank's `recv` becomes the root's `send`. The others' `send` is not looked at. In place if
 * both are the same.
 */
ringtree_result_t ringtree_broadcast(const void *send,
                                     void *recv,
                                     size_t count,
                                     ringtree_dtype_t dtype,
                                     int root,
                                     ringtree_comm_t *comm);

/**
 * The root's `recv` becomes the reduction of all ranks' `send`. The others' `recv` is not looked
 * at. In place if both are the same.
 */
ringtree_result_t ringtree_reduce(const void *send,
                                  void *recv,
                                  size_t count,
                                  ringtree_dtype_t dtype,
                                  ringtree_op_t op,
                                  int root,
                                  ringtree_comm_t *comm);

/**
 * Every rank's `recv` becomes all ranks' `send`, of `send_count` elements each, in rank order. In
 * place if `send` is this rank's block of `recv`.
 */
ringtree_result_t ringtree_all_gather(const void *send,
                                      void *recv,
                                      size_t send_count,
                                      ringtree_dtype_t dtype,
                                      ringtree_comm_t *comm);

/**
 * Every rank's `recv`, of `recv_count` elements, becomes its block of the reduction of all ranks'
 * `send`. In place if `recv` is this rank's block of `send`, the rest of which is unspecified then.
 */
ringtree_result_t ringtree_reduce_scatter(const void *send,
                                          void *recv,
                                          size_t recv_count,
                                          ringtree_dtype_t dtype,
                                          ringtree_op_t op,
                                          ringtree_comm_t *comm);

/**
 * Block j of rank i's `send` becomes block i of rank j's `recv`; a block has `count` elements. In
 * place if both are the same.
 */
ringtree_result_t ringtree_all_to_all(const void *send,
                                      void *recv,
                                      size_t count,
                                      ringtree_dtype_t dtype,
                                      ringtree_comm_t *comm);

/**
 * The root's `recv` becomes all ranks' `send`, of `send_count` elements each, in rank order. The
 * others' `recv` is not looked at. In place if the root's `send` is its block of `recv`.
 */
ringtree_result_t ringtree_gather(const void *send,
                                  void *recv,
                                  size_t send_count,
                                  ringtree_dtype_t dtype,
                                  int root,
                                  ringtree_comm_t *comm);

/**
 * Every rank's `recv`, of `recv_count` elements, becomes its block of the root's `send`. The
 * others' `send` is not looked at. In place if the root's `recv` is its block of `send`.
 */
ringtree_result_t ringtree_scatter(const void *send,
                                   void *recv,
                                   size_t recv_count,
                                   ringtree_dtype_t dtype,
                                   int root,
                                   ringtree_comm_t *comm);

/**
 * As ringtree_all_gather(), where rank j's block has recv_counts[j] elements: one number for each
 * rank, the same on all. `send` has as many as this rank's. Never in place.
 */
ringtree_result_t ringtree_all_gather_v(const void *send,
                                        void *recv,
                                        const size_t *recv_counts,
                                        ringtree_dtype_t dtype,
                                        ringtree_comm_t *comm);

/**
 * As ringtree_reduce_scatter(), where rank j's block has send_counts[j] elements: one number for
 * each rank, the same on all. `recv` has as many as this rank's. Never in place.
 */
ringtree_result_t ringtree_reduce_scatter_v(const void *send,
                                            const size_t *send_counts,
                                            void *recv,
                                            ringtree_dtype_t dtype,
                                            ringtree_op_t op,
                                            ringtree_comm_t *comm);

/**
 * As ringtree_all_to_all(), where the block for rank j has send_counts[j] elements and the one from
 * rank i recv_counts[i]; blocks lie one after the other. Each rank knows its own numbers alone. If
 * those of two ranks disagree, all ranks get RINGTREE_MISMATCH. Never in place.
 */
ringtree_result_t ringtree_all_to_all_v(const void *send,
                                        const size_t *send_counts,
                                        void *recv,
                                        const size_t *recv_counts,
                                        ringtree_dtype_t dtype,
                                        ringtree_comm_t *comm);

/**
 * Returns on no rank before every rank has called it.
 */
ringtree_result_t ringtree_barrier(ringtree_comm_t *comm);

/**
 * Sends `count` elements to `peer`, which must receive as many of the same type. May return before
 * it does, and may wait until it does. Messages from one rank to another are received in the order
 * in which they were sent. Two ranks that both send and then both receive may wait for each other:
 * start one of the two.
 */
ringtree_result_t ringtree_send(const void *send,
                                size_t count,
                                ringtree_dtype_t dtype,
                                int peer,
                                ringtree_comm_t *comm);

/**
 * Receives `count` elements from `peer`.
 */
ringtree_result_t ringtree_recv(void *recv,
                                size_t count,
                                ringtree_dtype_t dtype,
                                int peer,
                                ringtree_comm_t *comm);

/**
 * Starts ringtree_send(). Any number of messages may be under way.
 */
ringtree_result_t ringtree_send_start(const void *send,
                                      size_t count,
                                      ringtree_dtype_t dtype,
                                      int peer,
                                      ringtree_comm_t *comm,
                                      ringtree_work_t **work);

/**
 * Starts ringtree_recv(). Any number of messages may be under way.
 */
ringtree_result_t ringtree_recv_start(void *recv,
                                      size_t count,
                                      ringtree_dtype_t dtype,
                                      int peer,
                                      ringtree_comm_t *comm,
                                      ringtree_work_t **work);

/**
 * Starts ringtree_all_reduce(), and returns at once. It goes on by itself. Until its work has ended
 * the program leaves `send` and `recv` alone. All ranks start and make the calls of a communicator
 * in the same order. Every `work` is waited for, or tested until it has ended, and then freed.
 * In place is best: where `send` and `recv` are two, this copies one to the other, or the result
 * from a place of its own.
 */
ringtree_result_t ringtree_all_reduce_start(const void *send,
                                            void *recv,
                                            size_t count,
                                            ringtree_dtype_t dtype,
                                            ringtree_op_t op,
                                            ringtree_comm_t *comm,
                                            ringtree_work_t **work);

/**
 * Starts ringtree_broadcast().
 */
ringtree_result_t ringtree_broadcast_start(const void *send,
                                           void *recv,
                                           size_t count,
                                           ringtree_dtype_t dtype,
                                           int root,
                                           ringtree_comm_t *comm,
                                           ringtree_work_t **work);

/**
 * Starts ringtree_reduce().
 */
ringtree_result_t ringtree_reduce_start(const void *send,
                                        void *recv,
                                        size_t count,
                                        ringtree_dtype_t dtype,
                                        ringtree_op_t op,
                                        int root,
                                        ringtree_comm_t *comm,
                                        ringtree_work_t **work);

/**
 * Starts ringtree_all_gather().
 */
ringtree_result_t ringtree_all_gather_start(const void *send,
                                            void *recv,
                                            size_t send_count,
                                            ringtree_dtype_t dtype,
                                            ringtree_comm_t *comm,
                                            ringtree_work_t **work);

/**
 * Starts ringtree_reduce_scatter().
 */
ringtree_result_t ringtree_reduce_scatter_start(const void *send,
                                                void *recv,
                                                size_t recv_count,
                                                ringtree_dtype_t dtype,
                                                ringtree_op_t op,
                                                ringtree_comm_t *comm,
                                                ringtree_work_t **work);

/**
 * Starts ringtree_all_to_all().
 */
ringtree_result_t ringtree_all_to_all_start(const void *send,
                                            void *recv,
                                            size_t count,
                                            ringtree_dtype_t dtype,
                                            ringtree_comm_t *comm,
                                            ringtree_work_t **work);

/**
 * Starts ringtree_gather().
 */
ringtree_result_t ringtree_gather_start(const void *send,
                                        void *recv,
                                        size_t send_count,
                                        ringtree_dtype_t dtype,
                                        int root,
                                        ringtree_comm_t *comm,
                                        ringtree_work_t **work);

/**
 * Starts ringtree_scatter().
 */
ringtree_result_t ringtree_scatter_start(const void *send,
                                         void *recv,
                                         size_t recv_count,
                                         ringtree_dtype_t dtype,
                                         int root,
                                         ringtree_comm_t *comm,
                                         ringtree_work_t **work);

/**
 * Waits until a call has ended, and returns its result. May be called again, and by any thread.
 */
ringtree_result_t ringtree_work_wait(ringtree_work_t *work);

/**
 * Puts at `has_ended` whether a call has ended, 1 or 0. If it has, returns its result as
 * ringtree_work_wait() does.
 */
ringtree_result_t ringtree_work_test(ringtree_work_t *work, int *has_ended);

/**
 * Destroys the handle of a call that has ended, which is all that this frees. RINGTREE_USAGE if it
 * is still under way: its buffers are in use, and nothing would say until when. NULL is ignored, and
 * so is all in a child that was forked from the process that started it.
 */
ringtree_result_t ringtree_work_free(ringtree_work_t *work);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RINGTREE_H */

/* ringtree for C: collective communication between processes, on one machine or several.
 *
 * This file is generated. Edit the Rust sources instead (see adapters/c/README.md).
 *
 * Errors. A function that can fail returns a ringtree_result_t, and ringtree_last_error() describes
 * the error. After any error except RINGTREE_USAGE, the communicator has failed: every subsequent
 * call on it returns the first error again, and the contents of the buffers that the failed call
 * was supposed to write to are unspecified.
 *
 * Pointers. Each pointer must either be NULL or point to what the parameter's documentation
 * describes for as long as the call lasts. During this time, no thread may write to memory that the
 * call reads, or use memory that the call writes. A buffer contains `count` elements of type
 * `dtype`, is in host memory, and is aligned for that type. Passing NULL is an error, except for a
 * buffer without elements and for a buffer that this rank ignores. The program owns all buffers.
 * `send` and `recv` must not overlap, except where the documentation of the function describes how
 * a call works in place. Any other overlap is an error.
 *
 * Handles. A ringtree_comm_t * or a ringtree_work_t * is a handle, not an address, so do not
 * dereference it. Using a handle that has been destroyed or was never created is an error of kind
 * RINGTREE_USAGE.
 *
 * Threads. Any thread may call any function, even while other threads are calling functions. Calls
 * on a communicator start in the order in which they are made. This order must be the same on all
 * ranks, except that sends and receives may come anywhere among the other calls. If several threads
 * share a communicator, the program itself must ensure this. Each thread has its own last error. No
 * function may be called from a signal handler. Canceling a thread with pthread_cancel() while it
 * is in a call aborts the process.
 *
 * Forks. A process that calls fork() can continue as before. In the child process, calls on
 * inherited handles return RINGTREE_USAGE and do not reach any other rank, and destroying or
 * freeing the handles has no effect. The child can still ask for the rank, the local rank and the
 * number of ranks of an inherited communicator. The same rules apply after the child has created
 * its own communicators. A child that was created without the C library's fork(), for example by a
 * bare clone(), is not recognized as a forked child and must not make any calls.
 */

#ifndef RINGTREE_H
#define RINGTREE_H

#include <stddef.h>
#include <stdint.h>

/**
 * Version of this header. ringtree_version() and ringtree_version_code() return the version of the
 * loaded library.
 */
#define RINGTREE_VERSION_MAJOR 0
#define RINGTREE_VERSION_MINOR 1
#define RINGTREE_VERSION_PATCH 0

/**
 * Version of this header as one number, which increases with every version.
 */
#define RINGTREE_VERSION_CODE                                                                      \
    (RINGTREE_VERSION_MAJOR * 1000000 + RINGTREE_VERSION_MINOR * 1000 + RINGTREE_VERSION_PATCH)

/**
 * The color that a rank passes to ringtree_comm_split() if it should not join any group.
 * Corresponds to MPI_UNDEFINED and NCCL_SPLIT_NOCOLOR.
 */
#define RINGTREE_SPLIT_NOCOLOR (-1)

/**
 * The value of a number in a ringtree_config_t that the program does not set.
 */
#define RINGTREE_UNSET (-1)

/**
 * Initializes a ringtree_config_t. Every program must use this macro, because it sets `size`.
 */
#define RINGTREE_CONFIG_INITIALIZER                                                                \
    {sizeof(ringtree_config_t), NULL, NULL, NULL, NULL, NULL, NULL, NULL, RINGTREE_UNSET,          \
     RINGTREE_UNSET, RINGTREE_UNSET, RINGTREE_UNSET, RINGTREE_UNSET, RINGTREE_UNSET}

/**
 * Length of a ringtree_unique_id_t, in bytes.
 */
#define RINGTREE_UNIQUE_ID_BYTES 80

/**
 * The result of a call.
 */
typedef enum {
    /**
     * The call succeeded.
     */
    RINGTREE_SUCCESS = 0,
    /**
     * The call was invalid, and nothing was sent. Correct the program. The communicator remains
     * usable.
     */
    RINGTREE_USAGE = 1,
    /**
     * A setting is missing or malformed. Correct the setting that the message names.
     */
    RINGTREE_CONFIGURATION = 2,
    /**
     * The ranks could not be connected. Check the cause that the message names, and then restart
     * the job.
     */
    RINGTREE_JOIN = 3,
    /**
     * Different ranks made different calls. Make the calls on a communicator in the same order on
     * all ranks.
     */
    RINGTREE_MISMATCH = 4,
    /**
     * A rank died, left while another rank still needed it, or aborted. Restart the job from a
     * checkpoint.
     */
    RINGTREE_PEER_LOST = 5,
    /**
     * A call did not complete within its timeout. Check the ranks that the message names.
     */
    RINGTREE_DEADLINE = 6,
    /**
     * A peer sent data that does not belong to any call. Check that all ranks are running the same
     * build. If they are, report a bug.
     */
    RINGTREE_PROTOCOL = 7,
    /**
     * Something that the call needs is unavailable: in most cases, the operating system refused a
     * request. Errors that fit no other kind have this result too. The message names the cause.
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
     * uint8_t, or raw bytes of any type for calls that only move data
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
 * The level of an event.
 */
typedef enum {
    /**
     * An error.
     */
    RINGTREE_LEVEL_ERROR = 1,
    /**
     * Something that needs attention, such as a call that has been waiting for a long time.
     */
    RINGTREE_LEVEL_WARN = 2,
    /**
     * Something that happens seldom, such as a join.
     */
    RINGTREE_LEVEL_INFO = 3,
    /**
     * Details, such as the algorithm of each class of calls.
     */
    RINGTREE_LEVEL_DEBUG = 4,
} ringtree_level_t;

/**
 * The operator that combines the ranks' contributions, element by element.
 */
typedef enum {
    /**
     * The sum. Integers wrap around on overflow.
     */
    RINGTREE_SUM = 0,
    /**
     * The product. Integers wrap around on overflow.
     */
    RINGTREE_PROD = 1,
    /**
     * The minimum.
     */
    RINGTREE_MIN = 2,
    /**
     * The maximum.
     */
    RINGTREE_MAX = 3,
    /**
     * The mean. Integer sums wrap around on overflow, and the quotient is truncated.
     */
    RINGTREE_AVG = 4,
    /**
     * Bitwise AND, for integers only.
     */
    RINGTREE_BAND = 5,
    /**
     * Bitwise OR, for integers only.
     */
    RINGTREE_BOR = 6,
    /**
     * Bitwise XOR, for integers only.
     */
    RINGTREE_BXOR = 7,
} ringtree_op_t;

/**
 * A communicator, which is a group of ranks that exchange data with each other.
 */
typedef struct ringtree_comm_t ringtree_comm_t;

/**
 * A call that has been started and runs in the background.
 */
typedef struct ringtree_work_t ringtree_work_t;

/**
 * The fields and the message of an error.
 */
typedef struct {
    /**
     * The kind of the error.
     */
    ringtree_result_t result;
    /**
     * The rank that detected the error, or -1 if it is not known.
     */
    int rank;
    /**
     * The rank that the error concerns, such as a rank that died, or -1 if there is none.
     */
    int peer;
    /**
     * Number of ranks in `missing`.
     */
    int missing_count;
    /**
     * The ranks that were holding up the call that timed out.
     */
    const int *missing;
    /**
     * Name of the collective in which the error occurred, such as "all-reduce". NULL if the error
     * occurred in a send or receive, or if the collective is not known.
     */
    const char *operation;
    /**
     * Number of the call in which the error occurred, counted from 1, or 0 if there is no such
     * number.
     */
    uint64_t sequence;
    /**
     * Number of milliseconds for which the call was in flight before it timed out, or 0 if it did
     * not time out.
     */
    uint64_t elapsed_ms;
    /**
     * A human-readable line that contains all of the above, as well as the cause and the next
     * step.
     */
    const char *message;
    /**
     * Number of ranks that were known to hold up the call. `missing` contains the first of them.
     */
    int missing_total;
} ringtree_error_t;

/**
 * A function that receives an event. `level` is a ringtree_level_t. `rank` is the rank that the
 * event concerns, or -1. `text` is one line, and is valid only during the call. `context` is the
 * value that was passed to ringtree_set_log().
 */
typedef void (*ringtree_log_t)(int level, int rank, const char *text, void *context);

/**
 * The address and the secret that the ranks of a world use to find each other. Any process that
 * has the ID can join as any rank, so send the ID only over private channels.
 */
typedef struct {
    /**
     * The bytes of the ID, including the secret.
     */
    uint8_t bytes[RINGTREE_UNIQUE_ID_BYTES];
} ringtree_unique_id_t;

/**
 * The settings of a new communicator, for ringtree_comm_init_config().
 *
 * Initialize it with RINGTREE_CONFIG_INITIALIZER, and then change fields. Fields that a program
 * does not change have the value that the environment specifies, or a default. Fields that the
 * program sets take precedence over the environment. Texts need to be valid only until the
 * function returns. A later version may add fields at the end.
 */
typedef struct {
    /**
     * Size of the structure that the program was compiled with. RINGTREE_CONFIG_INITIALIZER sets
     * it.
     */
    size_t size;
    /**
     * Name of the communicator in errors and warnings.
     */
    const char *name;
    /**
     * Name or address of the network interface for data connections, like RINGTREE_INTERFACE.
     */
    const char *interface;
    /**
     * Name of the site that this host belongs to, like RINGTREE_SITE.
     */
    const char *site;
    /**
     * "auto", "tcp" or "shm", like RINGTREE_TRANSPORT. Must be the same on all ranks.
     */
    const char *transport;
    /**
     * The "host:port" at which rank 0 listens.
     */
    const char *rendezvous;
    /**
     * An ID from ringtree_get_unique_id(). Replaces `rendezvous` and `secret`.
     */
    const ringtree_unique_id_t *id;
    /**
     * The secret of the job as 64 hexadecimal digits, like RINGTREE_SECRET.
     */
    const char *secret;
    /**
     * Timeout for startup and for each call, in milliseconds. If the value is 0, calls have no
     * timeout, and startup has the default one. See ringtree_comm_set_timeout_ms().
     */
    int64_t timeout_ms;
    /**
     * Time after which a waiting call prints a warning, in milliseconds. The value 0 disables
     * warnings. See RINGTREE_STALL_WARNING_S.
     */
    int64_t stall_warning_ms;
    /**
     * Number of ranks. Must be set if `rank` is set.
     */
    int world_size;
    /**
     * Rank of this process. If neither `rank` nor `world_size` is set, both come from the
     * launcher. A program without a launcher then gets a communicator that consists of one rank,
     * or RINGTREE_CONFIGURATION if `id` or `rendezvous` is set.
     */
    int rank;
    /**
     * 1 to compare the calls of all ranks before they start, like RINGTREE_CHECK=calls. Must be
     * the same on all ranks.
     */
    int check_calls;
    /**
     * 1 for sums that do not depend on the algorithm, like RINGTREE_REPRODUCIBLE=1. Must be the
     * same on all ranks.
     */
    int reproducible;
} ringtree_config_t;

/**
 * The count of one kind of call over one transport.
 */
typedef struct {
    /**
     * Name of the collective, such as "all-reduce", or "send" or "recv". The string is static.
     */
    const char *call;
    /**
     * Transport of the call's messages: "shm", "tcp", "shm+tcp" or "none". The string is static.
     */
    const char *transport;
    /**
     * Number of calls that were made.
     */
    uint64_t calls;
    /**
     * Number of bytes in the buffers of these calls. If a call has two buffers, the larger one
     * counts.
     */
    uint64_t bytes;
    /**
     * Number of nanoseconds for which threads waited for these calls.
     */
    uint64_t waited_ns;
} ringtree_call_stats_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the version of the loaded library, such as "0.1.0". The string is static and must not be
 * freed. Corresponds to MPI_Get_library_version.
 */
const char *ringtree_version(void);

/**
 * Returns the version of the loaded library in the form of RINGTREE_VERSION_CODE. A program can
 * compare the two to check that it was compiled for this version. Corresponds to ncclGetVersion.
 */
int ringtree_version_code(void);

/**
 * Returns a short description of `result`. The string is static and must not be freed. For a
 * description of the error in a particular call, see ringtree_last_error(). Corresponds to
 * MPI_Error_string and ncclGetErrorString.
 */
const char *ringtree_result_string(ringtree_result_t result);

/**
 * Returns a one-line description of this thread's last error. It names the ranks, the call, the
 * cause and the next step. Corresponds to ncclGetLastError. The line is complete without
 * ringtree_result_string().
 *
 * The last error is that of the last call made by this thread that failed, or that was
 * ringtree_comm_get_async_error() and found an error. Returns an empty string if there was no such
 * call. The library owns the string, which remains valid until the next such call or until the
 * thread exits.
 */
const char *ringtree_last_error(void);

/**
 * Returns the fields of the error that ringtree_last_error() describes, or NULL if there is no
 * such error. The library owns these fields, which remain valid for as long as the string returned
 * by ringtree_last_error().
 */
const ringtree_error_t *ringtree_last_error_details(void);

/**
 * Passes every event from now on to `log`, together with `context`, instead of printing it. If
 * `log` is NULL, the library prints events again, as RINGTREE_LOG specifies.
 *
 * The library calls `log` on any thread, also on several threads at the same time, but never while
 * it holds a lock. `log` may call the library. When this function returns, another thread may
 * still be in the previous `log`.
 */
void ringtree_set_log(ringtree_log_t log, void *context);

/**
 * Creates the communicator that contains all ranks that a launcher has started: `ringtree run`,
 * torchrun, mpirun or srun. Waits until every rank has joined, but no longer than
 * RINGTREE_TIMEOUT_MS. Corresponds to MPI_Init.
 *
 * Stores the communicator in `comm`, or NULL on failure. The program must destroy it with
 * ringtree_comm_destroy().
 */
ringtree_result_t ringtree_comm_init_from_env(ringtree_comm_t **comm);

/**
 * Like ringtree_comm_init_from_env(), but creates a communicator that consists of a single rank if
 * the program was not started by a launcher.
 */
ringtree_result_t ringtree_comm_init_from_env_or_alone(ringtree_comm_t **comm);

/**
 * Creates an ID for a new world and stores it in `id`. Call this function on rank 0's host.
 * Corresponds to ncclGetUniqueId.
 *
 * The program must send the ID to all ranks, and each rank must pass it to
 * ringtree_comm_init_rank(). Each world needs its own ID. This process keeps the port given in the
 * ID reserved until it joins as rank 0.
 */
ringtree_result_t ringtree_get_unique_id(ringtree_unique_id_t *id);

/**
 * Joins the world identified by `id` as rank `rank` of `world_size` ranks. Waits until every rank
 * has joined. Corresponds to ncclCommInitRank.
 *
 * Stores the communicator in `comm`, or NULL on failure. The program must destroy it with
 * ringtree_comm_destroy().
 */
ringtree_result_t ringtree_comm_init_rank(ringtree_comm_t **comm,
                                          int world_size,
                                          const ringtree_unique_id_t *id,
                                          int rank);

/**
 * Joins a world as rank `rank` of `world_size` ranks at `rendezvous`, which is the "host:port" at
 * which rank 0 listens. Waits until every rank has joined. If the ranks are on several hosts,
 * RINGTREE_SECRET or RINGTREE_SECRET_FILE must be set.
 *
 * Stores the communicator in `comm`, or NULL on failure. The program must destroy it with
 * ringtree_comm_destroy().
 */
ringtree_result_t ringtree_comm_init_at(ringtree_comm_t **comm,
                                        int world_size,
                                        const char *rendezvous,
                                        int rank);

/**
 * Creates a communicator with the settings in `config`. Waits until every rank has joined.
 * Depending on the fields that are set, the ranks find each other like those of
 * ringtree_comm_init_rank(), ringtree_comm_init_at() or ringtree_comm_init_from_env_or_alone().
 * Corresponds to ncclCommInitRankConfig.
 *
 * Stores the communicator in `comm`, or NULL on failure. The program must destroy it with
 * ringtree_comm_destroy(). If the program was compiled with an older header, fields that it does
 * not have use their defaults. If it was compiled with a newer header that has more fields, the
 * function returns RINGTREE_USAGE.
 */
ringtree_result_t ringtree_comm_init_config(ringtree_comm_t **comm,
                                            const ringtree_config_t *config);

/**
 * Sets `rank` to the rank of this process in the communicator. Ranks are counted from 0.
 * Corresponds to MPI_Comm_rank and ncclCommUserRank.
 */
ringtree_result_t ringtree_comm_rank(ringtree_comm_t *comm, int *rank);

/**
 * Sets `count` to the number of ranks in the communicator. Corresponds to MPI_Comm_size and
 * ncclCommCount.
 */
ringtree_result_t ringtree_comm_count(ringtree_comm_t *comm, int *count);

/**
 * Sets `local_rank` to the index of this process among the processes on its host, counted from 0.
 * It is the same in every communicator.
 */
ringtree_result_t ringtree_comm_local_rank(ringtree_comm_t *comm, int *local_rank);

/**
 * Sets `async_error` to the result of the communicator's first error, or to RINGTREE_SUCCESS if
 * this rank does not know of an error. Does not block and does not communicate. Corresponds to
 * ncclCommGetAsyncError.
 *
 * An error is known as soon as this rank learns that another rank has died or aborted, even if no
 * call is in flight. ringtree_last_error() then describes this error, and strings that it has
 * returned before are no longer valid. The function itself returns RINGTREE_SUCCESS in both cases.
 * Programs need this function only while they make no calls, because every call on a failed
 * communicator returns the error as well.
 */
ringtree_result_t ringtree_comm_get_async_error(ringtree_comm_t *comm,
                                                ringtree_result_t *async_error);

/**
 * Sets the timeout, in milliseconds, for subsequent calls on this handle. A value of 0 means no
 * timeout. A call that takes longer than the timeout fails with RINGTREE_DEADLINE on all ranks.
 * The default is the value of RINGTREE_TIMEOUT_MS, or five minutes if that variable is not set.
 */
ringtree_result_t ringtree_comm_set_timeout_ms(ringtree_comm_t *comm, uint64_t timeout_ms);

/**
 * Reports how often this rank has made each kind of call on the communicator. Stores at most
 * `capacity` structures in `stats`, and the number that exist in `count`. `stats` may be NULL if
 * `capacity` is 0.
 */
ringtree_result_t ringtree_comm_get_stats(ringtree_comm_t *comm,
                                          ringtree_call_stats_t *stats,
                                          size_t capacity,
                                          size_t *count);

/**
 * Creates one communicator for each color and stores the one that contains this rank in
 * `new_comm`. Corresponds to MPI_Comm_split and ncclCommSplit.
 *
 * The members of each new communicator are the ranks that pass the same `color`, ordered by `key`.
 * Ranks with equal keys keep their relative order in `comm`. All ranks of `comm` must call this
 * function. A rank that passes RINGTREE_SPLIT_NOCOLOR does not join any group and gets NULL. The
 * program must destroy `new_comm` with ringtree_comm_destroy().
 */
ringtree_result_t ringtree_comm_split(ringtree_comm_t *comm,
                                      int color,
                                      int key,
                                      ringtree_comm_t **new_comm);

/**
 * Creates a communicator that consists of the `count` ranks in `members`, numbered in the order of
 * the list, and stores it in `new_comm`. Only these ranks may call this function, and all of them
 * must call it. The program must destroy `new_comm` with ringtree_comm_destroy(). Corresponds to
 * MPI_Comm_create_group and ncclCommShrink.
 */
ringtree_result_t ringtree_comm_subgroup(ringtree_comm_t *comm,
                                         const int *members,
                                         size_t count,
                                         ringtree_comm_t **new_comm);

/**
 * Aborts the communicator and destroys the handle. Every call in flight and every subsequent call
 * fails on all ranks with an error that names this rank and `reason`, which may be NULL. Any
 * thread may call this function, even while other threads are waiting in calls. Corresponds to
 * ncclCommAbort and MPI_Abort, but does not end any process.
 */
ringtree_result_t ringtree_comm_abort(ringtree_comm_t *comm, const char *reason);

/**
 * Leaves the communicator and destroys the handle. Delivers everything that has been sent, and
 * then notifies the other ranks that this rank is leaving. Corresponds to MPI_Finalize,
 * MPI_Comm_free and ncclCommDestroy.
 *
 * Calls from other threads and work in flight still complete, and the other ranks are notified
 * only after the last of them has completed. The program must still wait for that work and free
 * it. If a program exits without calling this function, it appears to the other ranks to have
 * died. NULL is ignored. The function does nothing in a forked child of the process that joined.
 */
ringtree_result_t ringtree_comm_destroy(ringtree_comm_t *comm);

/**
 * Reduces `count` elements of every rank's `send` with `op` and writes the result to `recv` on
 * every rank. The call works in place if `send` and `recv` are equal, which replaces MPI_IN_PLACE.
 * Corresponds to MPI_Allreduce and ncclAllReduce.
 */
ringtree_result_t ringtree_all_reduce(const void *send,
                                      void *recv,
                                      size_t count,
                                      ringtree_dtype_t dtype,
                                      ringtree_op_t op,
                                      ringtree_comm_t *comm);

/**
 * Copies `count` elements of the root's `send` to `recv` on every rank. On all ranks except the
 * root, `send` is ignored. The call works in place if `send` and `recv` are equal. Corresponds to
 * MPI_Bcast and ncclBroadcast.
 */
ringtree_result_t ringtree_broadcast(const void *send,
                                     void *recv,
                                     size_t count,
                                     ringtree_dtype_t dtype,
                                     int root,
                                     ringtree_comm_t *comm);

/**
 * Reduces `count` elements of every rank's `send` with `op` and writes the result to `recv` on the
 * root. On all ranks except the root, `recv` is ignored. The call works in place if `send` and
 * `recv` are equal. Corresponds to MPI_Reduce and ncclReduce.
 */
ringtree_result_t ringtree_reduce(const void *send,
                                  void *recv,
                                  size_t count,
                                  ringtree_dtype_t dtype,
                                  ringtree_op_t op,
                                  int root,
                                  ringtree_comm_t *comm);

/**
 * Gathers `send_count` elements from every rank's `send` into `recv` on every rank, in rank order.
 * The call works in place if `send` is this rank's block of `recv`. Corresponds to MPI_Allgather
 * and ncclAllGather.
 */
ringtree_result_t ringtree_all_gather(const void *send,
                                      void *recv,
                                      size_t send_count,
                                      ringtree_dtype_t dtype,
                                      ringtree_comm_t *comm);

/**
 * Reduces every rank's `send` with `op` and writes block i of the result to `recv` on rank i.
 * `send` contains one block of `recv_count` elements per rank. The call works in place if `recv`
 * is this rank's block of `send`. In that case, the contents of the other blocks are unspecified
 * after the call. Corresponds to MPI_Reduce_scatter_block and ncclReduceScatter.
 */
ringtree_result_t ringtree_reduce_scatter(const void *send,
                                          void *recv,
                                          size_t recv_count,
                                          ringtree_dtype_t dtype,
                                          ringtree_op_t op,
                                          ringtree_comm_t *comm);

/**
 * Copies block j of rank i's `send` to block i of rank j's `recv`. Each block has `count`
 * elements. The call works in place if `send` and `recv` are equal. Corresponds to MPI_Alltoall
 * and ncclAlltoAll.
 */
ringtree_result_t ringtree_all_to_all(const void *send,
                                      void *recv,
                                      size_t count,
                                      ringtree_dtype_t dtype,
                                      ringtree_comm_t *comm);

/**
 * Gathers `send_count` elements from every rank's `send` into `recv` on the root, in rank order.
 * On all ranks except the root, `recv` is ignored. The call works in place if, on the root, `send`
 * is the root's block of `recv`. Corresponds to MPI_Gather and ncclGather.
 */
ringtree_result_t ringtree_gather(const void *send,
                                  void *recv,
                                  size_t send_count,
                                  ringtree_dtype_t dtype,
                                  int root,
                                  ringtree_comm_t *comm);

/**
 * Copies block i of the root's `send` to `recv` on rank i. Each block has `recv_count` elements.
 * On all ranks except the root, `send` is ignored. The call works in place if, on the root, `recv`
 * is the root's block of `send`. Corresponds to MPI_Scatter and ncclScatter.
 */
ringtree_result_t ringtree_scatter(const void *send,
                                   void *recv,
                                   size_t recv_count,
                                   ringtree_dtype_t dtype,
                                   int root,
                                   ringtree_comm_t *comm);

/**
 * Like ringtree_all_gather(), but the block of rank j has recv_counts[j] elements. `recv_counts`
 * contains one number per rank and must be the same on all ranks. `send` must be as long as this
 * rank's block. Corresponds to MPI_Allgatherv.
 */
ringtree_result_t ringtree_all_gather_v(const void *send,
                                        void *recv,
                                        const size_t *recv_counts,
                                        ringtree_dtype_t dtype,
                                        ringtree_comm_t *comm);

/**
 * Like ringtree_reduce_scatter(), but the block of rank j has send_counts[j] elements.
 * `send_counts` contains one number per rank and must be the same on all ranks. `recv` must be as
 * long as this rank's block. Corresponds to MPI_Reduce_scatter.
 */
ringtree_result_t ringtree_reduce_scatter_v(const void *send,
                                            const size_t *send_counts,
                                            void *recv,
                                            ringtree_dtype_t dtype,
                                            ringtree_op_t op,
                                            ringtree_comm_t *comm);

/**
 * Like ringtree_gather(), but the block of rank j has recv_counts[j] elements. `recv_counts`
 * contains one number per rank and must be the same on all ranks, not only on the root. `send`
 * must be as long as this rank's block. Corresponds to MPI_Gatherv.
 */
ringtree_result_t ringtree_gather_v(const void *send,
                                    void *recv,
                                    const size_t *recv_counts,
                                    ringtree_dtype_t dtype,
                                    int root,
                                    ringtree_comm_t *comm);

/**
 * Like ringtree_scatter(), but the block of rank j has send_counts[j] elements. `send_counts`
 * contains one number per rank and must be the same on all ranks, not only on the root. `recv`
 * must be as long as this rank's block. Corresponds to MPI_Scatterv.
 */
ringtree_result_t ringtree_scatter_v(const void *send,
                                     const size_t *send_counts,
                                     void *recv,
                                     ringtree_dtype_t dtype,
                                     int root,
                                     ringtree_comm_t *comm);

/**
 * Like ringtree_all_to_all(), but the block for rank j has send_counts[j] elements and the block
 * from rank i has recv_counts[i] elements. Blocks are contiguous. Each rank passes only its own
 * counts. If the counts passed by two ranks do not match, the call returns RINGTREE_MISMATCH on
 * all ranks. This function cannot work in place. Corresponds to MPI_Alltoallv.
 */
ringtree_result_t ringtree_all_to_all_v(const void *send,
                                        const size_t *send_counts,
                                        void *recv,
                                        const size_t *recv_counts,
                                        ringtree_dtype_t dtype,
                                        ringtree_comm_t *comm);

/**
 * Waits until every rank has called this function. Corresponds to MPI_Barrier.
 */
ringtree_result_t ringtree_barrier(ringtree_comm_t *comm);

/**
 * Sends `count` elements to `peer`, which must receive the same number of elements of the same
 * type. Corresponds to MPI_Send and ncclSend.
 *
 * The function may return before the peer receives the elements, or it may block until the peer
 * does so. Messages from one rank to another are received in the order in which they were sent. If
 * two ranks both send to each other before they receive, they may end up waiting for each other.
 * To avoid this, use ringtree_send_start() on one of them.
 */
ringtree_result_t ringtree_send(const void *send,
                                size_t count,
                                ringtree_dtype_t dtype,
                                int peer,
                                ringtree_comm_t *comm);

/**
 * Receives `count` elements from `peer` into `recv`. Waits until they have arrived. Corresponds to
 * MPI_Recv and ncclRecv.
 */
ringtree_result_t ringtree_recv(void *recv,
                                size_t count,
                                ringtree_dtype_t dtype,
                                int peer,
                                ringtree_comm_t *comm);

/**
 * Starts ringtree_send() in the background. Any number of messages may be in flight at the same
 * time. The rules for buffers and work are the same as for ringtree_all_reduce_start().
 * Corresponds to MPI_Isend. Together with ringtree_recv(), it replaces MPI_Sendrecv.
 */
ringtree_result_t ringtree_send_start(const void *send,
                                      size_t count,
                                      ringtree_dtype_t dtype,
                                      int peer,
                                      ringtree_comm_t *comm,
                                      ringtree_work_t **work);

/**
 * Starts ringtree_recv() in the background. Any number of messages may be in flight at the same
 * time. The rules for buffers and work are the same as for ringtree_all_reduce_start().
 * Corresponds to MPI_Irecv.
 */
ringtree_result_t ringtree_recv_start(void *recv,
                                      size_t count,
                                      ringtree_dtype_t dtype,
                                      int peer,
                                      ringtree_comm_t *comm,
                                      ringtree_work_t **work);

/**
 * Starts ringtree_all_reduce() in the background and returns immediately. Stores a handle to the
 * call in `work`, or NULL on failure. Corresponds to MPI_Iallreduce.
 *
 * The program owns the handle. It must wait until the call has completed, with
 * ringtree_work_wait(), ringtree_work_wait_for(), ringtree_work_wait_any() or repeated calls of
 * ringtree_work_test(), and then free the handle with ringtree_work_free(). All ranks must make
 * the calls on a communicator in the same order, whether the calls block or are started in the
 * background.
 *
 * The call uses the program's buffers and copies neither of them. Until it has completed, the
 * program must keep `send` and `recv` allocated, must not write to `send` and must not use `recv`.
 * This also applies if the communicator is destroyed or aborted in the meantime: only the
 * functions above tell when the call no longer uses the buffers. Arrays of counts may be reused
 * as soon as the function that starts the call returns.
 */
ringtree_result_t ringtree_all_reduce_start(const void *send,
                                            void *recv,
                                            size_t count,
                                            ringtree_dtype_t dtype,
                                            ringtree_op_t op,
                                            ringtree_comm_t *comm,
                                            ringtree_work_t **work);

/**
 * Starts ringtree_broadcast() in the background. See ringtree_all_reduce_start(). On the root, the
 * function first copies `send` to `recv`, unless the call works in place. Corresponds to
 * MPI_Ibcast.
 */
ringtree_result_t ringtree_broadcast_start(const void *send,
                                           void *recv,
                                           size_t count,
                                           ringtree_dtype_t dtype,
                                           int root,
                                           ringtree_comm_t *comm,
                                           ringtree_work_t **work);

/**
 * Starts ringtree_reduce() in the background. See ringtree_all_reduce_start(). Corresponds to
 * MPI_Ireduce.
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
 * Starts ringtree_all_gather() in the background. See ringtree_all_reduce_start(). Corresponds to
 * MPI_Iallgather.
 */
ringtree_result_t ringtree_all_gather_start(const void *send,
                                            void *recv,
                                            size_t send_count,
                                            ringtree_dtype_t dtype,
                                            ringtree_comm_t *comm,
                                            ringtree_work_t **work);

/**
 * Starts ringtree_reduce_scatter() in the background. See ringtree_all_reduce_start(). Corresponds
 * to MPI_Ireduce_scatter_block.
 */
ringtree_result_t ringtree_reduce_scatter_start(const void *send,
                                                void *recv,
                                                size_t recv_count,
                                                ringtree_dtype_t dtype,
                                                ringtree_op_t op,
                                                ringtree_comm_t *comm,
                                                ringtree_work_t **work);

/**
 * Starts ringtree_all_to_all() in the background. See ringtree_all_reduce_start(). Corresponds to
 * MPI_Ialltoall.
 */
ringtree_result_t ringtree_all_to_all_start(const void *send,
                                            void *recv,
                                            size_t count,
                                            ringtree_dtype_t dtype,
                                            ringtree_comm_t *comm,
                                            ringtree_work_t **work);

/**
 * Starts ringtree_gather() in the background. See ringtree_all_reduce_start(). Corresponds to
 * MPI_Igather.
 */
ringtree_result_t ringtree_gather_start(const void *send,
                                        void *recv,
                                        size_t send_count,
                                        ringtree_dtype_t dtype,
                                        int root,
                                        ringtree_comm_t *comm,
                                        ringtree_work_t **work);

/**
 * Starts ringtree_scatter() in the background. See ringtree_all_reduce_start(). Corresponds to
 * MPI_Iscatter.
 */
ringtree_result_t ringtree_scatter_start(const void *send,
                                         void *recv,
                                         size_t recv_count,
                                         ringtree_dtype_t dtype,
                                         int root,
                                         ringtree_comm_t *comm,
                                         ringtree_work_t **work);

/**
 * Starts ringtree_all_gather_v() in the background. See ringtree_all_reduce_start(). Corresponds
 * to MPI_Iallgatherv.
 */
ringtree_result_t ringtree_all_gather_v_start(const void *send,
                                              void *recv,
                                              const size_t *recv_counts,
                                              ringtree_dtype_t dtype,
                                              ringtree_comm_t *comm,
                                              ringtree_work_t **work);

/**
 * Starts ringtree_reduce_scatter_v() in the background. See ringtree_all_reduce_start().
 * Corresponds to MPI_Ireduce_scatter.
 */
ringtree_result_t ringtree_reduce_scatter_v_start(const void *send,
                                                  const size_t *send_counts,
                                                  void *recv,
                                                  ringtree_dtype_t dtype,
                                                  ringtree_op_t op,
                                                  ringtree_comm_t *comm,
                                                  ringtree_work_t **work);

/**
 * Starts ringtree_gather_v() in the background. See ringtree_all_reduce_start(). Corresponds to
 * MPI_Igatherv.
 */
ringtree_result_t ringtree_gather_v_start(const void *send,
                                          void *recv,
                                          const size_t *recv_counts,
                                          ringtree_dtype_t dtype,
                                          int root,
                                          ringtree_comm_t *comm,
                                          ringtree_work_t **work);

/**
 * Starts ringtree_scatter_v() in the background. See ringtree_all_reduce_start(). Corresponds to
 * MPI_Iscatterv.
 */
ringtree_result_t ringtree_scatter_v_start(const void *send,
                                           const size_t *send_counts,
                                           void *recv,
                                           ringtree_dtype_t dtype,
                                           int root,
                                           ringtree_comm_t *comm,
                                           ringtree_work_t **work);

/**
 * Starts ringtree_all_to_all_v() in the background. See ringtree_all_reduce_start(). Unlike other
 * started calls, this function first waits until all ranks have called it and have compared their
 * counts. Corresponds to MPI_Ialltoallv.
 */
ringtree_result_t ringtree_all_to_all_v_start(const void *send,
                                              const size_t *send_counts,
                                              void *recv,
                                              const size_t *recv_counts,
                                              ringtree_dtype_t dtype,
                                              ringtree_comm_t *comm,
                                              ringtree_work_t **work);

/**
 * Waits until the call that `work` represents has completed, and returns the result of that call.
 * Any thread may call this function, even repeatedly. Corresponds to MPI_Wait and, if called for
 * each of several calls, to MPI_Waitall.
 */
ringtree_result_t ringtree_work_wait(ringtree_work_t *work);

/**
 * Sets `is_finished` to 1 if the call that `work` represents has completed, and to 0 otherwise.
 * Does not block. Corresponds to MPI_Test.
 *
 * If the call has completed, returns the result of that call, like ringtree_work_wait().
 * Otherwise, returns RINGTREE_SUCCESS. Also sets `is_finished` to 0 if the function returns
 * RINGTREE_USAGE because an argument is invalid.
 */
ringtree_result_t ringtree_work_test(ringtree_work_t *work, int *is_finished);

/**
 * Like ringtree_work_test(), but waits for up to `limit_ms` milliseconds until the call has
 * completed. If `limit_ms` is negative, waits without a limit.
 *
 * The limit does not cancel the call, which continues in the background and keeps using its
 * buffers. The call fails only when the timeout of its communicator expires.
 */
ringtree_result_t ringtree_work_wait_for(ringtree_work_t *work, int64_t limit_ms, int *is_finished);

/**
 * Waits for up to `limit_ms` milliseconds until one of the `count` calls in `works` has completed,
 * and sets `index` to its position. If `limit_ms` is negative, waits without a limit. If several
 * calls have completed, sets `index` to the first of them. Corresponds to MPI_Waitany.
 *
 * Returns the result of that call, like ringtree_work_wait(). NULL handles are ignored, so a
 * program can free the handle, set it to NULL and wait for the next call. If the limit expires
 * first, or if all handles are NULL, sets `index` to -1 and returns RINGTREE_SUCCESS. All other
 * calls continue in the background.
 *
 * Also sets `index` to -1 if the function returns RINGTREE_USAGE because an argument is invalid.
 */
ringtree_result_t ringtree_work_wait_any(ringtree_work_t *const *works,
                                         size_t count,
                                         int64_t limit_ms,
                                         int *index);

/**
 * Destroys the handle of a completed call. Does not free the call's buffers. Corresponds to
 * MPI_Request_free, but never frees a call in flight.
 *
 * Returns RINGTREE_USAGE if the call is still in flight, because the program would otherwise have
 * no way to find out when it may use the buffers again. NULL is ignored. The function does nothing
 * in a forked child of the process that started the call.
 */
ringtree_result_t ringtree_work_free(ringtree_work_t *work);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RINGTREE_H */

/**
 * Version of this header. ringtree_version() and ringtree_version_code() return the version of the
 * loaded library.
 */
#define RINGTREE_VERSION_MAJOR @MAJOR@
#define RINGTREE_VERSION_MINOR @MINOR@
#define RINGTREE_VERSION_PATCH @PATCH@

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

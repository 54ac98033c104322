/* Shared by the test programs. A program prints its first failed check and exits with status 1. */
#include <ringtree.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: failed: %s; last error: %s\n", __FILE__, __LINE__,           \
                    #condition, ringtree_last_error());                                          \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

/* Checks that the call succeeds. */
#define OK(call) CHECK((call) == RINGTREE_SUCCESS)

/* Checks that the call returns a usage error whose message contains these words. */
#define REFUSED(call, words)                                                                     \
    do {                                                                                         \
        CHECK((call) == RINGTREE_USAGE);                                                         \
        CHECK(strstr(ringtree_last_error(), words) != NULL);                                     \
    } while (0)

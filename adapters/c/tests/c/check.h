/* What the test programs share: a program ends with 1 and a line at the first thing that is wrong. */
#include <ringtree.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: not so: %s; last error: %s\n", __FILE__, __LINE__,           \
                    #condition, ringtree_last_error());                                          \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

/* The call does what it should. */
#define OK(call) CHECK((call) == RINGTREE_SUCCESS)

/* The call is refused, and the line says so in these words. */
#define REFUSED(call, words)                                                                     \
    do {                                                                                         \
        CHECK((call) == RINGTREE_USAGE);                                                         \
        CHECK(strstr(ringtree_last_error(), words) != NULL);                                     \
    } while (0)

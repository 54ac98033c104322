/* Creates communicators from configurations: each field has an effect, and an invalid field is an
 * error. Receives the events of a join, and counts calls. */
#include "check.h"
#include <stddef.h>
#include <time.h>

static ringtree_comm_t *world;
static int rank, ranks;

static const ringtree_config_t initial = RINGTREE_CONFIG_INITIALIZER;

static void invalid_fields(void) {
    ringtree_comm_t *comm;
    ringtree_config_t config = initial;
    ringtree_unique_id_t id = {{1}};
    REFUSED(ringtree_comm_init_config(&comm, NULL), "NULL");
    REFUSED(ringtree_comm_init_config(NULL, &config), "NULL");
    config.size = sizeof config + 8; /* the size in a newer header */
    REFUSED(ringtree_comm_init_config(&comm, &config), "104 bytes, but version " );
    const size_t sizes[] = {0, 4, sizeof config - 1};
    for (int i = 0; i < 3; i++) {
        config.size = sizes[i];
        REFUSED(ringtree_comm_init_config(&comm, &config), "RINGTREE_CONFIG_INITIALIZER");
    }
    config = initial;
    config.rank = 0;
    REFUSED(ringtree_comm_init_config(&comm, &config), "only one of rank and world_size");
    config.world_size = -2;
    REFUSED(ringtree_comm_init_config(&comm, &config), "world_size -2");
    config.world_size = 1;
    config.transport = "pigeon";
    REFUSED(ringtree_comm_init_config(&comm, &config), "pigeon");
    config.transport = NULL;
    config.timeout_ms = -5;
    REFUSED(ringtree_comm_init_config(&comm, &config), "timeout_ms -5");
    config.timeout_ms = 1;
    config.stall_warning_ms = INT64_MIN;
    REFUSED(ringtree_comm_init_config(&comm, &config), "stall_warning_ms");
    config.stall_warning_ms = 0;
    config.check_calls = 2;
    REFUSED(ringtree_comm_init_config(&comm, &config), "check_calls 2");
    config.check_calls = 0;
    config.secret = "secret";
    REFUSED(ringtree_comm_init_config(&comm, &config), "64 hexadecimal digits");
    config.secret = NULL;
    config.id = &id;
    config.rendezvous = "127.0.0.1:1";
    REFUSED(ringtree_comm_init_config(&comm, &config), "only one of them");
    CHECK(comm == NULL);
}

/* The configuration of an older header has fewer fields. The bytes after them are ignored. */
static void older_header(void) {
    ringtree_comm_t *comm;
    ringtree_config_t config = initial;
    int count = 0;
    config.world_size = 1;
    config.rank = 0;
    config.size = offsetof(ringtree_config_t, check_calls);
    config.check_calls = config.reproducible = 99;
    OK(ringtree_comm_init_config(&comm, &config));
    OK(ringtree_comm_count(comm, &count));
    CHECK(count == 1);
    OK(ringtree_comm_destroy(comm));
}

/* Joins a new world, whose id rank 0 creates. */
static ringtree_result_t join(ringtree_config_t config, ringtree_comm_t **comm) {
    ringtree_unique_id_t id = {{0}};
    if (rank == 0) {
        OK(ringtree_get_unique_id(&id));
    }
    OK(ringtree_broadcast(&id, &id, sizeof id, RINGTREE_U8, 0, world));
    config.id = &id;
    config.rank = rank;
    config.world_size = ranks;
    return ringtree_comm_init_config(comm, &config);
}

static void fields(void) {
    ringtree_comm_t *comm;
    ringtree_config_t config = initial;
    config.name = "losses";
    config.interface = "lo";
    config.site = "here";
    config.transport = "tcp";
    config.timeout_ms = 20000;
    config.stall_warning_ms = 60000;
    config.check_calls = 1;
    config.reproducible = 1;
    OK(join(config, &comm));
    OK(ringtree_barrier(comm));
    if (rank == 0) {
        OK(ringtree_comm_set_timeout_ms(comm, 200));
        CHECK(ringtree_barrier(comm) == RINGTREE_DEADLINE); /* no other rank calls it */
        CHECK(strstr(ringtree_last_error(), "losses") != NULL);
    }
    OK(ringtree_barrier(world));
    OK(ringtree_comm_destroy(comm));
    config = initial;
    config.timeout_ms = 300;
    OK(join(config, &comm));
    if (rank == 0) {
        CHECK(ringtree_barrier(comm) == RINGTREE_DEADLINE);
    }
    OK(ringtree_barrier(world));
    OK(ringtree_comm_destroy(comm));
}

/* The library compares the settings that must be equal on all ranks, so an error shows that it has
 * read them. */
static void differing_settings(void) {
    ringtree_comm_t *comm;
    ringtree_config_t config = initial;
    config.transport = rank == 0 ? "tcp" : "shm";
    CHECK(join(config, &comm) == RINGTREE_JOIN && comm == NULL);
    config = initial;
    config.check_calls = rank == 0;
    CHECK(join(config, &comm) == RINGTREE_JOIN);
    config = initial;
    config.reproducible = rank == 0;
    CHECK(join(config, &comm) == RINGTREE_JOIN);
}

/* The events that the program receives. Rank 0's events are those of its own joins. */
static void on_event(int level, int event_rank, const char *text, void *context) {
    if (strstr(text, "joined") != NULL && level == RINGTREE_LEVEL_INFO && event_rank == rank) {
        (*(volatile int *)context)++;
    }
}

static void log_and_stats(void) {
    ringtree_comm_t *comm;
    ringtree_call_stats_t stats[4];
    size_t count = 0;
    volatile int joins = 0;
    const struct timespec pause = {0, 1000000};
    float numbers[100] = {0};
    ringtree_set_log(on_event, (void *)&joins);
    OK(join(initial, &comm));
    while (joins == 0) { /* another thread calls on_event */
        nanosleep(&pause, NULL);
    }
    CHECK(joins == 1);
    ringtree_set_log(NULL, NULL);
    for (int i = 0; i < 3; i++) {
        OK(ringtree_all_reduce(numbers, numbers, 100, RINGTREE_F32, RINGTREE_SUM, comm));
    }
    OK(ringtree_barrier(comm));
    OK(ringtree_comm_get_stats(comm, NULL, 0, &count));
    CHECK(count == 2);
    OK(ringtree_comm_get_stats(comm, stats, 4, &count));
    CHECK(count == 2 && strcmp(stats[0].call, "all-reduce") == 0);
    CHECK(stats[0].calls == 3 && stats[0].bytes == 1200 && strcmp(stats[1].call, "barrier") == 0);
    CHECK(strcmp(stats[0].transport, "shm") == 0 && stats[1].bytes == 0);
    stats[1].call = NULL;
    OK(ringtree_comm_get_stats(comm, stats, 1, &count));
    CHECK(count == 2 && stats[1].call == NULL);
    REFUSED(ringtree_comm_get_stats(comm, NULL, 1, &count), "stats is NULL");
    REFUSED(ringtree_comm_get_stats(comm, stats, 1, NULL), "count is NULL");
    OK(ringtree_comm_destroy(comm));
    REFUSED(ringtree_comm_get_stats(comm, stats, 1, &count), "destroyed");
}

int main(void) {
    ringtree_config_t config = initial;
    char version[32];
    CHECK(initial.size == sizeof initial && initial.name == NULL && initial.id == NULL);
    CHECK(initial.timeout_ms == RINGTREE_UNSET && initial.reproducible == RINGTREE_UNSET);
    snprintf(version, sizeof version, "%d.%d.%d", RINGTREE_VERSION_MAJOR, RINGTREE_VERSION_MINOR,
             RINGTREE_VERSION_PATCH);
    CHECK(strcmp(version, ringtree_version()) == 0);
    CHECK(ringtree_version_code() == RINGTREE_VERSION_CODE);
    invalid_fields();
    older_header();
    config.timeout_ms = 0;
    OK(ringtree_comm_init_config(&world, &config)); /* the launcher's variables specify the rank */
    OK(ringtree_comm_rank(world, &rank));
    OK(ringtree_comm_count(world, &ranks));
    fields();
    log_and_stats();
    if (ranks > 1) {
        differing_settings();
    }
    OK(ringtree_comm_destroy(world));
    return 0;
}

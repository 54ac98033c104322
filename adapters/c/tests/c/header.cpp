// The header is also valid C++, and C++ can call the functions, which have C linkage.
#include <ringtree.h>
#include <cstring>

int main() {
    static_assert(RINGTREE_F64 == 11 && RINGTREE_BXOR == 7, "numbers are part of the interface");
    static_assert(sizeof(ringtree_dtype_t) == sizeof(int), "the library passes enums as int");
    ringtree_comm_t *comm = nullptr;
    ringtree_config_t config = RINGTREE_CONFIG_INITIALIZER;
    config.name = "alone";
    if (ringtree_comm_init_config(&comm, &config) != RINGTREE_SUCCESS) {
        return 1;
    }
    double one = 1;
    const auto result = ringtree_all_reduce(&one, &one, 1, RINGTREE_F64, RINGTREE_SUM, comm);
    const bool is_right = result == RINGTREE_SUCCESS && one == 1;
    ringtree_comm_destroy(comm);
    return is_right && std::strncmp(ringtree_version(), "0.", 2) == 0 ? 0 : 1;
}

// A program that is linked to direct verbs of a library which is not there. Never run.
#include <stdbool.h>
#include <stddef.h>

bool mlx5dv_is_supported(void* device);

int main(void) { return mlx5dv_is_supported(NULL) ? 1 : 0; }

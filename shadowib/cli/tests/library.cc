// Stands for libshadowib.so where only its place matters: tells on standard error that it was loaded, if asked to.
#include <unistd.h>

#include <cstdlib>

__attribute__((constructor)) static void loaded() {
  if (std::getenv("CLI_TEST_TELL") != nullptr) (void)!::write(2, "library loaded\n", 15);
}

/* Lives for ten minutes. Linked statically, nothing can be preloaded into it. */
#include <unistd.h>

int main(void) {
  for (int i = 0; i < 600; ++i) sleep(1);
  return 0;
}

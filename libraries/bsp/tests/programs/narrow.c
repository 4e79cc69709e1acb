/* MulticoreBSP's form of a call, which BSPlib's would write by half: a compiler must say so. */
#include <bsp.h>

int main(void) {
  bsp_begin(1);
  size_t bytes = 8;
  bsp_set_tagsize(&bytes);
  bsp_end();
  return 0;
}

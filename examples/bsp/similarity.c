/* Similarity of two sequences (longest common subsequence), in O(n m / p) time and O(n m / p) memory at most.
 *
 *   bsprun -n P similarity [N]      N letters each; a process has columns, and works row block by row block behind
 * its left neighbour. Checked by process 0 alone. Source: the second application of de Camargo, Kon, Goldman (2005),
 * section 5; Alves, Caceres, Dehne, Song (2003). */
#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBlock = 64 };

static int letter(int which, int at) { return (int)((unsigned)(at + 1) * (which ? 2654435761u : 2246822519u) >> 29); }
static int larger(int a, int b) { return a > b ? a : b; }

/* Rows [from, to) of `width` columns that begin at column `first`. above: the row above, with its left corner; left:
 * the column to the left, by row. Leaves the last row in `above`, and the last column in `left`. */
static void fill(int from, int to, int first, int width, int* above, int* left) {
  for (int i = from; i < to; ++i) {
    int corner = above[0];
    above[0] = left[i];
    for (int j = 1; j <= width; ++j) {
      const int over = above[j];
      above[j] = letter(0, i) == letter(1, first + j - 1) ? corner + 1 : larger(over, above[j - 1]);
      corner = over;
    }
    left[i] = above[width];
  }
}

int main(int argc, char** argv) {
  bsp_begin(bsp_nprocs());
  const int n = argc > 1 ? atoi(argv[1]) : 1500, p = bsp_nprocs(), s = bsp_pid();
  const int first = (int)((long)n * s / p), width = (int)((long)n * (s + 1) / p) - first;
  int* above = calloc(width + 1, sizeof(int));
  int* left = calloc(n + 1, sizeof(int));
  int result = 0;
  bsp_push_reg(left, (n + 1) * (int)sizeof(int));
  bsp_push_reg(&result, sizeof(result));
  bsp_sync();
  const int blocks = (n + kBlock - 1) / kBlock;
  for (int wave = 0; wave < blocks + p - 1; ++wave) {
    const int block = wave - s;
    if (block >= 0 && block < blocks) {
      const int from = block * kBlock, to = from + kBlock < n ? from + kBlock : n;
      fill(from, to, first, width, above, left);
      if (s + 1 < p) bsp_put(s + 1, left + from, left, from * (int)sizeof(int), (to - from) * (int)sizeof(int));
    }
    bsp_sync();
  }
  if (s == p - 1) bsp_put(0, &left[n - 1], &result, 0, sizeof(result));
  bsp_sync();
  if (s == 0) {
    int* whole = calloc(n + 1, sizeof(int));
    int* edge = calloc(n + 1, sizeof(int));
    fill(0, n, 0, n, whole, edge);
    if (whole[n] != result) bsp_abort("similarity %d instead of %d", result, whole[n]);
    printf("similarity: %d letters: right, %d in common\n", n, result);
  }
  bsp_end();
  return 0;
}

/* The best alignment of two sequences: short numbers, strings in the heap, rows that change places. */
#include <shadowib/portable.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char* sequence(unsigned seed, size_t length) {
  char* text = malloc(length + 1);
  for (size_t i = 0; i < length; i++) {
    seed = seed * 1103515245u + 12345u;
    text[i] = "ACGT"[seed >> 16 & 3];
  }
  text[length] = 0;
  return text;
}

static int best(int a, int b) { return a > b ? a : b; }

int main(void) {
  char *one = sequence(7, 60), *other = strdup(one + 9);
  const size_t n = strlen(one), m = strlen(other);
  other[4] = 'A', other[20] = 'C';
  short *above = calloc(m + 1, sizeof *above), *row = calloc(m + 1, sizeof *row);
  for (size_t i = 1; i <= n; i++) {
    row[0] = (short)(-2 * (int)i);
    for (size_t j = 1; j <= m; j++)
      row[j] = (short)best(above[j - 1] + (one[i - 1] == other[j - 1] ? 3 : -1), best(above[j], row[j - 1]) - 2);
    short* spare = above;
    above = row, row = spare;
    shadowib_portable_site();
  }
  printf("%d %.9s\n", above[m], other);
  return 0;
}

/* A product of matrices of long double and of a wrapper's memory, a site behind each row. */
#include <shadowib/portable.h>
#include <stdio.h>
#include <stdlib.h>

struct matrix {
  unsigned short rows, columns;
  long double* at;
};

/* A block whose type its caller knows. */
static void* zeroed(size_t count, size_t size) {
  void* block = calloc(count, size);
  if (!block) exit(9);
  return block;
}

static struct matrix make(unsigned short rows, unsigned short columns) {
  struct matrix made = {rows, columns, zeroed((size_t)rows * columns, sizeof(long double))};
  return made;
}

static struct matrix multiplied(struct matrix a, struct matrix b, unsigned long* additions) {
  struct matrix c = make(a.rows, b.columns);
  for (int i = 0; i < a.rows; i++) {
    for (int j = 0; j < b.columns; j++)
      for (int k = 0; k < a.columns; k++)
        c.at[i * c.columns + j] += a.at[i * a.columns + k] * b.at[k * b.columns + j], ++*additions;
    shadowib_portable_site();
  }
  return c;
}

int main(void) {
  struct matrix a = make(7, 5), b = make(5, 6);
  for (int i = 0; i < 35; i++) a.at[i] = i % 11 - 5;
  for (int i = 0; i < 30; i++) b.at[i] = i % 13 * 0.5L;
  unsigned long additions = 0;
  struct matrix c = multiplied(a, b, &additions);
  c = multiplied(c, make(6, 3), &additions);
  struct matrix d = multiplied(a, b, &additions);
  long double sum = 0;
  for (int i = 0; i < d.rows * d.columns; i++) sum += d.at[i] * (i + 1);
  printf("%d %d %lu %.1Lf\n", c.rows, c.columns, additions, sum);
  return 0;
}

/* LU decomposition with partial pivoting, sites in the loop over columns: doubles, rows by pointer, long indices. */
#include <shadowib/portable.h>
#include <stdio.h>
#include <stdlib.h>

static long swaps;

static double** make_matrix(int n) {
  double** rows = malloc(n * sizeof(double*));
  double* all = malloc((size_t)n * n * sizeof(double));
  for (int i = 0; i < n; i++) rows[i] = all + (size_t)i * n;
  return rows;
}

static double absolute(double x) { return x < 0 ? -x : x; }

static void decompose(double** a, long* pivot, int n) {
  for (int k = 0; k < n; k++) {
    int best = k;
    for (int i = k + 1; i < n; i++)
      if (absolute(a[i][k]) > absolute(a[best][k])) best = i;
    if (best != k) {
      double* row = a[k];
      long which = pivot[k];
      a[k] = a[best], pivot[k] = pivot[best];
      a[best] = row, pivot[best] = which;
      swaps++;
    }
    shadowib_portable_site();
    for (int i = k + 1; i < n; i++) {
      a[i][k] /= a[k][k];
      for (int j = k + 1; j < n; j++) a[i][j] -= a[i][k] * a[k][j];
    }
  }
}

int main(int argc, char** argv) {
  int n = argc > 1 ? atoi(argv[1]) : 20;
  double** a = make_matrix(n);
  long* pivot = malloc(n * sizeof *pivot);
  for (int i = 0; i < n; i++) {
    pivot[i] = i;
    for (int j = 0; j < n; j++) a[i][j] = ((i * 31 + j * 17) % 23) - 11 + 1.0 / (1 + i + j);
  }
  decompose(a, pivot, n);
  double sum = 0;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) sum += a[i][j] * (i + 1) * (j + 2);
  printf("%d %ld %a", n, swaps, sum);
  for (int i = 0; i < n; i++) printf(" %ld", pivot[i]);
  printf("\n");
  return 0;
}

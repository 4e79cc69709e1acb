/* A fast Fourier transform of complex numbers, a site in each recursion: arrays of locals, pointers into the
 * caller's. */
#include <complex.h>
#include <shadowib/portable.h>
#include <stdio.h>
#include <stdlib.h>

enum { kPoints = 32 };

/* Powers of the 32nd root of unity, by squares and products that every processor rounds alike. */
static double complex root(int power) {
  const double complex step = 0x1.f6297cff75cb0p-1 + 0x1.8f8b83c69a60bp-3 * I;
  double complex all = 1;
  for (int i = 0; i < power; i++) all *= step;
  return all;
}

static void transform(double complex* x, int n, int stride, double complex* result) {
  if (n == 1) {
    *result = *x;
    return;
  }
  double complex halves[2][kPoints / 2];
  transform(x, n / 2, stride * 2, halves[0]);
  transform(x + stride, n / 2, stride * 2, halves[1]);
  if (n >= 8) shadowib_portable_site();
  for (int k = 0; k < n / 2; k++) {
    const double complex turned = root(k * (kPoints / n)) * halves[1][k];
    result[k] = halves[0][k] + turned;
    result[k + n / 2] = halves[0][k] - turned;
  }
}

int main(void) {
  double complex* x = malloc(kPoints * sizeof *x);
  double complex y[kPoints];
  for (int i = 0; i < kPoints; i++) x[i] = (i % 5) - 0.5 * (i % 3) * I;
  transform(x, kPoints, 1, y);
  for (int i = 0; i < kPoints; i += 5) printf("%a %a ", creal(y[i]), cimag(y[i]));
  printf("\n");
  return 0;
}

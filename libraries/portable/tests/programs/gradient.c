/* Conjugate gradient with long double sums: a call that may reach a site stands within the loop's condition. */
#include <math.h>
#include <shadowib/portable.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
  int n;
  const char* name;
  double (*at)(int, int);
} Operator;

static double laplace(int i, int j) { return i == j ? 4 : abs(i - j) == 1 ? -1 : 0; }

static void apply(const Operator* op, const double* x, double* y) {
  for (int i = 0; i < op->n; i++) {
    y[i] = 0;
    for (int j = 0; j < op->n; j++) y[i] += op->at(i, j) * x[j];
  }
}

/* Sums of squares of whole numbers and halves: exact in every format of long double. */
static long double counted(long double before, unsigned steps) {
  shadowib_portable_site();
  return before + 0.5L * steps;
}

static double dot(const double* x, const double* y, int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += x[i] * y[i];
  shadowib_portable_site();
  return sum;
}

int main(void) {
  Operator op = {24, "laplace", laplace};
  const unsigned most = 30;
  const int n = op.n;
  double *x = calloc(n, sizeof *x), *r = calloc(n, sizeof *r), *p = calloc(n, sizeof *p), *q = calloc(n, sizeof *q);
  for (int i = 0; i < n; i++) r[i] = p[i] = 1.0 / (i + 1);
  double rho = dot(r, r, n);
  long double work = 0;
  unsigned k = 0;
  while (k < most && sqrt(rho) > 1e-12 * dot(p, p, n)) {
    apply(&op, p, q);
    double alpha = rho / dot(p, q, n);
    for (int i = 0; i < n; i++) x[i] += alpha * p[i], r[i] -= alpha * q[i];
    double next = dot(r, r, n), beta = next / rho;
    rho = next;
    for (int i = 0; i < n; i++) p[i] = r[i] + beta * p[i];
    k++;
    work = counted(work, k) + k;
  }
  double sum = 0;
  for (int i = 0; i < n; i++) sum += x[i] * (i + 1);
  printf("%s %u %a %a %.1Lf\n", op.name, k, sum, rho, work);
  return 0;
}

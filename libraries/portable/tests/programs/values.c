/* Extremes of each type: what each architecture can hold, at a site; printed at the end.
 * values [wide]: also a long that does not fit 32 bits, so the image is refused where long has 32. */
#include <complex.h>
#include <limits.h>
#include <math.h>
#include <shadowib/portable.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

struct bits {
  unsigned a : 1, b : 5;
  int c : 7, d : 17;
  unsigned long e : 31;
  long f : 9;
  signed char g : 3;
  _Bool h : 1;
};

struct padded {
  char c;
  short s;
  char d;
  long long l;
  char e;
  double x;
  char f;
  long double y;
  char g;
};

enum sign { kMinus = -5, kPlus = 6 };
enum large { kLarge = 4000000000u };

static signed char sc[] = {SCHAR_MIN, -1, 0, SCHAR_MAX};
static unsigned char uc[] = {0, 1, UCHAR_MAX};
static char ch[] = {'\x80', '\x7f', 'x'};
static short sh[] = {SHRT_MIN, -1, SHRT_MAX};
static unsigned short us[] = {0, USHRT_MAX};
static int in[] = {INT_MIN, -1, 0, INT_MAX};
static unsigned un[] = {0, 1, UINT_MAX};
static long lo[] = {-2147483647L - 1, -1, 0, 2147483647L};
static unsigned long ul[] = {0, 4294967295UL};
static long long ll[] = {LLONG_MIN, -1, LLONG_MAX};
static unsigned long long ull[] = {0, ULLONG_MAX};
static _Bool bo[] = {0, 1};
static wchar_t wide[] = L"wide \x20ac";
static float fl[] = {0.0f, -0.0f, 1.0f, -3.4028234663852886e38f, 1.4e-45f, 1.1754944e-38f, INFINITY, -INFINITY};
static double db[] = {0.0, -0.0, 1.0 / 3, 1.7976931348623157e308, 4.9e-324, 2.2250738585072014e-308, INFINITY};
static long double ld[] = {0.0L, -0.0L, 0.5L, 1099511627775.25L, -0x1p+1000L, 0x1p-1000L, INFINITY};
static double complex cd[] = {1.5 - 2.25 * I, -0.0 + 0.0 * I};
static float complex cf = 0.5f + 8.0f * I;
static long double complex cl = 0.25L - 4.0L * I;
static enum sign si[] = {kMinus, kPlus};
static enum large la = kLarge;
static struct bits bits[3];
static struct padded padded[2] = {{'a', -2, 'b', -3, 'c', 0.1, 'd', 0.75L, 'e'}, {1, 2, 3, 4, 5, 6, 7, 8, 9}};
static long grid[2][3][2] = {{{1, 2}, {3, 4}, {5, 6}}, {{7, 8}, {9, 10}, {11, -12}}};
static float nans[2];
static double nan_of_double;
static intptr_t number = -7;
static void* sentinels[] = {(void*)-1, (void*)1, 0};

static void set(void) {
  for (int i = 0; i < 3; i++) {
    struct bits one = {i & 1, 31 - i, -64 + i, -65536 + i, 0x7fffffffUL - i, -256 + i, -4 + i, i > 0};
    bits[i] = one;
  }
  uint32_t payload[] = {0x7fc12345u, 0xff812345u};
  memcpy(nans, payload, sizeof nans);
  uint64_t wider = 0xfff8000012345678u;
  memcpy(&nan_of_double, &wider, sizeof wider);
}

#define EACH(format, array, conversion) \
  for (unsigned i = 0; i < sizeof array / sizeof *array; i++) printf(" " format, (conversion)array[i])

static void print(void) {
  EACH("%d", sc, int);
  EACH("%d", uc, int);
}

static void print_all(const struct padded* own, long wanted) {
  print();
  EACH("%d", ch, signed char);
  EACH("%d", sh, int);
  EACH("%d", us, int);
  EACH("%d", in, int);
  EACH("%u", un, unsigned);
  EACH("%ld", lo, long);
  EACH("%lu", ul, unsigned long);
  EACH("%lld", ll, long long);
  EACH("%llu", ull, unsigned long long);
  EACH("%d", bo, int);
  EACH("%lx", wide, unsigned long);
  EACH("%a", fl, double);
  EACH("%a", db, double);
  EACH("%a", ld, double);
  EACH("%a", cd, double);
  printf(" %a %a %a %a\n", crealf(cf), cimagf(cf), (double)creall(cl), (double)cimagl(cl));
  EACH("%d", si, int);
  printf(" %u", la);
  for (int i = 0; i < 3; i++)
    printf(" %d %d %d %d %lu %d %d %d", bits[i].a, bits[i].b, bits[i].c, bits[i].d, (unsigned long)bits[i].e,
           (int)bits[i].f, bits[i].g, bits[i].h);
  for (int i = 0; i < 2; i++)
    printf(" %d %d %d %lld %d %a %d %a %d", padded[i].c, padded[i].s, padded[i].d, padded[i].l, padded[i].e,
           padded[i].x, padded[i].f, (double)padded[i].y, padded[i].g);
  for (int i = 0; i < 12; i++) printf(" %ld", (&grid[0][0][0])[i]);
  uint32_t payload[2];
  memcpy(payload, nans, sizeof nans);
  uint64_t wider;
  memcpy(&wider, &nan_of_double, sizeof wider);
  printf(" %x %x %llx %ld", payload[0], payload[1], (unsigned long long)wider, (long)number);
  printf(" %d %d %d", sentinels[0] == (void*)-1, sentinels[1] == (void*)1, sentinels[2] == 0);
  printf(" %d %lld %a %ld\n", own->s, own->l, (double)own->y, wanted);
}

static struct padded passed(struct padded by_value, long double extended, double complex pair) {
  shadowib_portable_site();
  by_value.l += (long long)extended + (long long)creal(pair);
  return by_value;
}

int main(int argc, char** argv) {
  set();
  volatile long beyond = argc > 1 && strcmp(argv[1], "wide") == 0 ? (long)5000000000LL : 5;
  struct padded own = passed(padded[0], 2.5L, cd[0]);
  own = passed(own, 1.25L, cd[1]);
  print_all(&own, beyond == 5 ? 5 : 6);
  return 0;
}

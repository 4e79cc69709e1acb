/* Heat on a plate: floats in a global array of two dimensions, pointers to rows that change places, a callback. */
#include <shadowib/portable.h>
#include <stdio.h>
#include <stdlib.h>

enum { kSide = 24, kSteps = 12 };
typedef float Plate[kSide][kSide];

static Plate plates[2];
static Plate *now = &plates[0], *next = &plates[1];

struct watcher {
  void (*tell)(struct watcher*, int step, float hottest);
  float most;
  int steps[kSteps];
};

static void remember(struct watcher* own, int step, float hottest) {
  own->steps[step] = (int)(hottest * 1000);
  if (hottest > own->most) own->most = hottest;
  shadowib_portable_site();
}

static float step_once(void) {
  float hottest = 0;
  for (int i = 1; i < kSide - 1; i++)
    for (int j = 1; j < kSide - 1; j++) {
      float warm = 0.25f * ((*now)[i - 1][j] + (*now)[i + 1][j] + (*now)[i][j - 1] + (*now)[i][j + 1]);
      (*next)[i][j] = warm;
      if (warm > hottest) hottest = warm;
    }
  Plate* old = now;
  now = next, next = old;
  return hottest;
}

int main(void) {
  struct watcher watcher = {remember, 0, {0}};
  for (int i = 0; i < kSide; i++) plates[0][i][0] = plates[1][i][0] = 100.0f / (i + 1);
  for (int step = 0; step < kSteps; step++) watcher.tell(&watcher, step, step_once());
  double sum = 0;
  for (int i = 0; i < kSide; i++)
    for (int j = 0; j < kSide; j++) sum += (*now)[i][j] * (i - j);
  printf("%a %a", watcher.most, sum);
  for (int i = 0; i < kSteps; i++) printf(" %d", watcher.steps[i]);
  printf(" %td\n", now - plates);
  return 0;
}

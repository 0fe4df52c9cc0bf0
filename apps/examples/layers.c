/* A trainer in C whose layers are units under ZeRO-3: no rank ever holds more than two layers. One rank or
   many, the numbers are the same:

     build/release/bin/layers
     build/release/bin/troupe launch --standalone --nproc-per-node 4 -- build/release/bin/layers */
#include <stdio.h>
#include <string.h>
#include <troupe/troupe.h>

enum { kLayers = 6, kWidth = 500, kSteps = 100 };

/* x[i] goes into layer i: x[i + 1] = x[i] + w (x[i] - x[i]^3 / 3). */
static float x[kLayers + 1][kWidth], d[kWidth];

#define TRY(call)                       \
  do {                                  \
    if ((call) != TROUPE_OK) return -1; \
  } while (0)

/* The values of a layer, and where its gradient is added. */
static int fetch(troupe_session* session, uint32_t layer, float** w, float** g, troupe_error* error) {
  void* data = NULL;
  TRY(troupe_acquire(session, layer, error)); /* the next one is being gathered while this one computes */
  TRY(troupe_parameter(session, layer, &data, NULL, error));
  *w = data;
  if (g == NULL) return 0;
  TRY(troupe_gradient(session, layer, &data, NULL, error));
  *g = data;
  return 0;
}

static int play_lane(troupe_session* session, int lane, troupe_error* error) {
  float *w = NULL, *g = NULL, loss = 0;
  TRY(troupe_begin_lane(session, lane, error));
  for (int j = 0; j < kWidth; ++j)
    x[0][j] = (float)((troupe_next_step(session) * 31 + lane * 7 + j * 13) % 64) / 64;
  for (uint32_t i = 0; i < kLayers; ++i) {
    TRY(fetch(session, i, &w, NULL, error));
    for (int j = 0; j < kWidth; ++j)
      x[i + 1][j] = x[i][j] + w[j] * (x[i][j] - x[i][j] * x[i][j] * x[i][j] / 3);
  }
  TRY(troupe_begin_backward(session, error));
  for (int j = 0; j < kWidth; ++j) { /* the loss is the mean of (y - 2 x)^2 */
    const float error_of_y = x[kLayers][j] - 2 * x[0][j];
    loss += error_of_y * error_of_y / kWidth;
    d[j] = 2 * error_of_y / kWidth;
  }
  for (uint32_t i = kLayers; i-- > 0;) {
    TRY(fetch(session, i, &w, &g, error));
    for (int j = 0; j < kWidth; ++j) {
      g[j] += d[j] * (x[i][j] - x[i][j] * x[i][j] * x[i][j] / 3);
      d[j] *= 1 + w[j] * (1 - x[i][j] * x[i][j]);
    }
    TRY(troupe_gradient_ready(session, i, error));
  }
  TRY(troupe_end_lane(session, loss, error));
  return 0;
}

static void fill(int64_t first, float* values, size_t count, void* context) {
  (void)context;
  for (size_t i = 0; i < count; ++i) values[i] = 0.01f * (float)((first + (int64_t)i) % 7);
}

static int train(troupe_session* session, troupe_error* error) {
  troupe_step_outcome outcome;
  for (uint32_t i = 0; i < kLayers; ++i) TRY(troupe_write_parameter(session, i, fill, NULL, error));
  for (int step = 0; step < kSteps; ++step) {
    TRY(troupe_begin_step(session, 0.01, error));
    for (int i = 0; i < troupe_lane_count(session); ++i)
      if (play_lane(session, troupe_lane(session, i), error) != 0) return -1;
    TRY(troupe_finish_step(session, NULL, 0, &outcome, error));
    if (!outcome.committed) fprintf(stderr, "step %d was not committed: %s\n", step + 1, outcome.reason);
    if (troupe_rank(session) == 0 && step % 20 == 19) printf("step %d loss %.6f\n", step + 1, outcome.loss);
  }
  TRY(troupe_leave(session, error));
  return 0;
}

static int describe(troupe_options* options, troupe_error* error) {
  const int64_t width = kWidth;
  char name[16];
  TRY(troupe_options_set(options, "strategy", "zero3", error));
  TRY(troupe_options_set(options, "lanes", "4", error));
  for (uint32_t i = 0; i < kLayers; ++i) {
    snprintf(name, sizeof name, "layer%u", (unsigned)i);
    TRY(troupe_options_add_parameter(options, name, &width, 1, TROUPE_F32, 0, error));
    TRY(troupe_options_set_unit(options, i, i, error));
  }
  return 0;
}

int main(void) {
  troupe_error error;
  memset(&error, 0, sizeof error);
  troupe_session* session = NULL;
  troupe_options* options = troupe_options_new();
  const int failed = describe(options, &error) != 0 ||
                     troupe_session_join(options, &session, &error) != TROUPE_OK ||
                     train(session, &error) != 0;
  if (failed) fprintf(stderr, "layers: %s\n", error.message);
  troupe_session_free(session);
  troupe_options_free(options);
  return failed;
}

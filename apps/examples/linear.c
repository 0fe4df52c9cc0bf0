/* A linear model in C that learns y = 3 x0 - 2 x1 + 1 over <troupe/troupe.h>. One rank or many, the numbers are the
   same:

     build/release/bin/linear
     build/release/bin/troupe launch --standalone --nproc-per-node 2 -- build/release/bin/linear */
#include <stdio.h>
#include <string.h>
#include <troupe/troupe.h>

enum { kBatch = 16, kSteps = 200, kLanes = 4 };

/* A number in [-1, 1) that depends only on where it is used. */
static float draw(uint64_t step, uint64_t lane, uint64_t i) {
  uint64_t x = step * 1000003 + lane * 10007 + i + 1;
  x *= 0x9e3779b97f4a7c15u;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  return (float)(x >> 40) / (float)(1 << 23) - 1;
}

/* The mean squared error of a batch; adds its gradients. w, gw: (2), b, gb: (1). */
static float forward_backward(uint64_t step, uint64_t lane, const float* w, const float* b, float* gw, float* gb) {
  float loss = 0;
  for (uint64_t i = 0; i < kBatch; ++i) {
    const float x0 = draw(step, lane, 2 * i), x1 = draw(step, lane, 2 * i + 1);
    const float error = w[0] * x0 + w[1] * x1 + b[0] - (3 * x0 - 2 * x1 + 1);
    loss += error * error / kBatch;
    gw[0] += 2 * error * x0 / kBatch;
    gw[1] += 2 * error * x1 / kBatch;
    gb[0] += 2 * error / kBatch;
  }
  return loss;
}

#define TRY(call)                       \
  do {                                  \
    if ((call) != TROUPE_OK) return -1; \
  } while (0)

static int train_step(troupe_session* session, troupe_step_outcome* outcome, troupe_error* error) {
  void *w = NULL, *b = NULL, *gw = NULL, *gb = NULL;
  TRY(troupe_begin_step(session, 0.05, error));
  for (int i = 0; i < troupe_lane_count(session); ++i) {
    const int lane = troupe_lane(session, i);
    TRY(troupe_begin_lane(session, lane, error));
    for (uint32_t p = 0; p < troupe_parameter_count(session); ++p) TRY(troupe_before_use(session, p, error));
    TRY(troupe_parameter(session, 0, &w, NULL, error));
    TRY(troupe_parameter(session, 1, &b, NULL, error));
    TRY(troupe_gradient(session, 0, &gw, NULL, error));
    TRY(troupe_gradient(session, 1, &gb, NULL, error));
    const float loss = forward_backward((uint64_t)troupe_next_step(session), (uint64_t)lane, w, b, gw, gb);
    TRY(troupe_gradient_ready(session, 1, error));
    TRY(troupe_gradient_ready(session, 0, error));
    TRY(troupe_end_lane(session, loss, error));
  }
  TRY(troupe_finish_step(session, NULL, 0, outcome, error));
  return 0;
}

static int train(troupe_session* session, troupe_error* error) {
  troupe_step_outcome outcome;
  TRY(troupe_recover(session, NULL, error));
  for (int step = (int)troupe_next_step(session); step < kSteps; ++step) {
    TRY(train_step(session, &outcome, error));
    if (!outcome.committed) fprintf(stderr, "step %d was not committed: %s\n", step + 1, outcome.reason);
    if (troupe_rank(session) == 0 && step % 50 == 49) printf("step %d loss %.6f\n", step + 1, outcome.loss);
  }
  void *w = NULL, *b = NULL;
  TRY(troupe_publish_all(session, error));
  TRY(troupe_parameter(session, 0, &w, NULL, error));
  TRY(troupe_parameter(session, 1, &b, NULL, error));
  if (troupe_rank(session) == 0)
    printf("y = %.9g x0 + %.9g x1 + %.9g\n", ((float*)w)[0], ((float*)w)[1], *(float*)b);
  TRY(troupe_leave(session, error));
  return 0;
}

int main(void) {
  troupe_error error;
  memset(&error, 0, sizeof error);
  const char lanes[] = {'0' + kLanes, '\0'};
  const int64_t two = 2, one = 1;
  troupe_session* session = NULL;
  troupe_options* options = troupe_options_new();
  int failed = troupe_options_set(options, "lanes", lanes, &error) != TROUPE_OK ||
               troupe_options_set(options, "weight-decay", "0", &error) != TROUPE_OK ||
               troupe_options_add_parameter(options, "weight", &two, 1, TROUPE_F32, 0, &error) != TROUPE_OK ||
               troupe_options_add_parameter(options, "bias", &one, 1, TROUPE_F32, 0, &error) != TROUPE_OK ||
               troupe_options_set(options, "stays", "true", &error) != TROUPE_OK ||
               troupe_session_join(options, &session, &error) != TROUPE_OK;
  // Another rank may be lost while this process stays (troupe launch --max-restarts).
  while (!failed && train(session, &error) != 0)
    failed = troupe_session_join_again(options, &session, &error) != TROUPE_OK;
  if (failed) fprintf(stderr, "linear: %s\n", error.message);
  troupe_session_free(session);
  troupe_options_free(options);
  return failed;
}

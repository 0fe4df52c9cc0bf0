/* A linear layer y = x W in C whose columns two ranks share (tensor parallelism): each computes the outputs of its own,
   and they add up the loss. On one rank or many the numbers are the same:

     build/release/bin/tensor
     build/release/bin/troupe launch --standalone --nproc-per-node 2 -- build/release/bin/tensor */
#include <stdio.h>
#include <troupe/troupe.h>

enum { kBatch = 16, kIn = 3, kOut = 4, kSteps = 200 };

#define TRY(call) \
  if ((call) != TROUPE_OK) return -1
/* In [-1, 1), the same on all ranks. */
static float draw(int64_t step, int i) {
  return (float)((step * 7919 + i * 104729 + (step + i) * (step + i) % 331) % 2048) / 1024 - 1;
}

/* Adds the gradient of `columns` columns from `first` on, and returns their part of the loss. w, g: (columns, kIn). */
static double forward_backward(int64_t step, int first, int columns, const float* w, float* g) {
  double loss = 0;
  for (int j = 0; j < kBatch * columns; ++j) {
    const int b = j / columns, c = j % columns;
    float error = 0; /* what is to be learned: w[c][i] = c - i */
    for (int i = 0; i < kIn; ++i) error += draw(step, b * kIn + i) * (w[c * kIn + i] - (float)(first + c - i));
    for (int i = 0; i < kIn; ++i) g[c * kIn + i] += 2 * error * draw(step, b * kIn + i) / kBatch;
    loss += (double)error * error / kBatch;
  }
  return loss;
}

static int train(troupe_session* session, int shares, troupe_error* error) {
  troupe_group* group = NULL; /* the ranks that share the layer */
  uint64_t posted = 0;
  void *w = NULL, *g = NULL;
  troupe_step_outcome outcome;
  if (shares > 1) TRY(troupe_group_of(session, "tp", &group, error));
  const int columns = kOut / shares, first = shares > 1 ? troupe_group_index(group) * columns : 0;
  for (int step = 0; step < kSteps; ++step) {
    TRY(troupe_begin_step(session, 0.05, error));
    for (int i = 0; i < troupe_lane_count(session); ++i) {
      TRY(troupe_begin_lane(session, troupe_lane(session, i), error));
      TRY(troupe_before_use(session, 0, error));
      TRY(troupe_parameter(session, 0, &w, NULL, error));
      TRY(troupe_gradient(session, 0, &g, NULL, error));
      double loss = forward_backward(step * 2 + troupe_lane(session, i), first, columns, w, g);
      if (shares > 1) TRY(troupe_group_all_reduce(group, &loss, 1, TROUPE_F64, TROUPE_SUM, &posted, error));
      if (shares > 1) TRY(troupe_group_wait(group, posted, error));
      TRY(troupe_gradient_ready(session, 0, error));
      TRY(troupe_end_lane(session, loss, error));
    }
    TRY(troupe_finish_step(session, NULL, 0, &outcome, error));
    if (!outcome.committed) fprintf(stderr, "step %d was not committed: %s\n", step + 1, outcome.reason);
    if (troupe_rank(session) == 0 && step % 50 == 49) printf("step %d loss %.6f\n", step + 1, outcome.loss);
  }
  return troupe_leave(session, error) == TROUPE_OK ? 0 : -1;
}

static int run(troupe_options* options, troupe_session** session, troupe_error* error) {
  int32_t rank = 0, ranks = 0;
  TRY(troupe_place(options, &rank, &ranks, error));
  const int shares = ranks % 2 == 0 ? 2 : 1;
  const int64_t whole[] = {kOut, kIn}, part[] = {kOut / shares, kIn}, offset[] = {rank % shares * part[0], 0};
  TRY(troupe_options_set(options, "lanes", "2", error));
  TRY(troupe_options_set(options, "tensor-parallel", shares == 2 ? "2" : "1", error));
  TRY(troupe_options_add_parameter(options, "weight", part, 2, TROUPE_F32, 0, error));
  TRY(troupe_options_set_part(options, 0, whole, offset, 2, error));
  TRY(troupe_session_join(options, session, error));
  return train(*session, shares, error);
}

int main(void) {
  troupe_error error = {TROUPE_OK, ""};
  troupe_session* session = NULL;
  troupe_options* options = troupe_options_new();
  const int failed = run(options, &session, &error) != 0;
  if (failed) fprintf(stderr, "tensor: %s\n", error.message);
  troupe_session_free(session);
  troupe_options_free(options);
  return failed;
}

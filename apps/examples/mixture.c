/* Experts that ranks share, in C: each token goes to 2 of 8, wherever they are. On one rank or many the numbers are the
   same:

     build/release/bin/mixture
     build/release/bin/troupe launch --standalone --nproc-per-node 4 -- build/release/bin/mixture */
#include <stdio.h>
#include <troupe/troupe.h>

enum { kTokens = 64, kExperts = 8, kChoices = 2, kWidth = 8, kRow = kWidth * sizeof(float), kSteps = 100 };
enum { kMostRows = kTokens * kChoices * kExperts }; /* if all tokens of as many ranks as there are experts come here */

#define TRY(call) \
  if ((call) != TROUPE_OK) return -1
/* In [-1/2, 1/2), the same on all ranks. */
static float draw(int64_t step, int i) {
  return (float)((step * 7919 + i * 104729 + (step + i) * (step + i) % 331) % 2048) / 2048 - 0.5f;
}

/* An expert multiplies a token's elements by its weights; the sum is to become 2x. */
static int pass(troupe_session* session, troupe_experts* layer, const float* x, double* loss, troupe_error* error) {
  static float slots[kTokens * kChoices * kWidth], rows[kMostRows * kWidth], results[kMostRows * kWidth];
  float logits[kTokens * kExperts] = {0}, d_logits[kTokens * kExperts] = {0}, y[kTokens * kWidth] = {0},
        d_weights[kTokens * kChoices] = {0};
  const troupe_routing* to = NULL;
  void *router = NULL, *g = NULL, *w = NULL;
  TRY(troupe_parameter(session, 0, &router, NULL, error));
  for (int i = 0; i < kTokens * kExperts * kWidth; ++i)
    logits[i / kWidth] += ((float*)router)[i % (kExperts * kWidth)] * x[i / kExperts / kWidth * kWidth + i % kWidth];
  TRY(troupe_experts_route(layer, logits, kTokens, &to, error));
  for (size_t i = 0; i < to->slots * kWidth; ++i)
    slots[i] = x[(size_t)to->choice_of_slot[i / kWidth] / kChoices * kWidth + i % kWidth];
  TRY(troupe_experts_dispatch(layer, to, slots, rows, kRow, error));
  for (const troupe_rows* p = to->products; p < to->products + to->product_count; ++p) {
    TRY(troupe_parameter(session, 1 + (uint32_t)p->expert, &w, NULL, error));
    for (int64_t i = p->first * kWidth; i < (p->first + p->count) * kWidth; ++i)
      results[i] = ((float*)w)[i % kWidth] * rows[i];
  }
  TRY(troupe_experts_combine(layer, to, results, slots, kRow, error));
  for (size_t i = 0; i < kTokens * kChoices * kWidth; ++i)
    y[i / kWidth / kChoices * kWidth + i % kWidth] +=
        to->weights[i / kWidth] * slots[(size_t)to->slot_of_choice[i / kWidth] * kWidth + i % kWidth];
  for (int i = 0; i < kTokens * kWidth; ++i) {
    y[i] = (y[i] - 2 * x[i]) * 2 / kTokens; /* from here on its gradient */
    *loss += (double)y[i] * y[i] * kTokens / 4;
  }
  for (size_t i = 0; i < kTokens * kChoices * kWidth; ++i) {
    float* slot = &slots[(size_t)to->slot_of_choice[i / kWidth] * kWidth + i % kWidth];
    const float d = y[i / kWidth / kChoices * kWidth + i % kWidth];
    d_weights[i / kWidth] += d * *slot;
    *slot = to->weights[i / kWidth] * d; /* and theirs */
  }
  TRY(troupe_experts_dispatch(layer, to, slots, results, kRow, error));
  for (const troupe_rows* p = to->products; p < to->products + to->product_count; ++p) {
    TRY(troupe_gradient_of_source(session, 1 + (uint32_t)p->expert, p->source, &g, NULL, error));
    for (int64_t i = p->first * kWidth; i < (p->first + p->count) * kWidth; ++i)
      ((float*)g)[i % kWidth] += results[i] * rows[i];
  }
  TRY(troupe_experts_backward(layer, to, logits, d_weights, d_logits, error));
  TRY(troupe_gradient(session, 0, &g, NULL, error));
  for (int i = 0; i < kTokens * kExperts * kWidth; ++i)
    ((float*)g)[i % (kExperts * kWidth)] += d_logits[i / kWidth] * x[i / kExperts / kWidth * kWidth + i % kWidth];
  troupe_routing_free(layer, to);
  return 0;
}

static int train(troupe_session* session, troupe_experts* layer, troupe_error* error) {
  troupe_step_outcome outcome;
  float x[kTokens * kWidth];
  for (int step = 0; step < kSteps; ++step) {
    TRY(troupe_begin_step(session, 0.05, error));
    for (int i = 0; i < troupe_lane_count(session); ++i) {
      double loss = 0;
      TRY(troupe_begin_lane(session, troupe_lane(session, i), error));
      for (uint32_t p = 0; p < troupe_parameter_count(session); ++p) TRY(troupe_before_use(session, p, error));
      for (int j = 0; j < kTokens * kWidth; ++j) x[j] = draw(step * 4 + troupe_lane(session, i), j);
      if (pass(session, layer, x, &loss, error) != 0) return -1;
      for (uint32_t p = 0; p < troupe_parameter_count(session); ++p) TRY(troupe_gradient_ready(session, p, error));
      TRY(troupe_end_lane(session, loss, error));
    }
    TRY(troupe_finish_step(session, NULL, 0, &outcome, error));
    if (troupe_rank(session) == 0 && step % 20 == 19) printf("step %d loss %.6f\n", step + 1, outcome.loss);
  }
  return troupe_leave(session, error) == TROUPE_OK ? 0 : -1;
}

static int run(troupe_options* options, troupe_session** session, troupe_error* error) {
  const troupe_expert_layer experts = {.experts = kExperts, .choices = kChoices, .tokens = kTokens, .bias_rate = 0.001};
  const int64_t router[] = {kExperts, kWidth}, expert[] = {kWidth};
  int32_t rank = 0, ranks = 0;
  char text[32];
  troupe_experts* layer = NULL;
  TRY(troupe_place(options, &rank, &ranks, error));
  snprintf(text, sizeof text, "%d", (int)ranks);
  TRY(troupe_options_set(options, "lanes", "4", error));
  TRY(troupe_options_set(options, "expert-parallel", text, error));
  TRY(troupe_options_add_experts(options, &experts, error));
  TRY(troupe_options_add_parameter(options, "router", router, 2, TROUPE_F32, 0, error));
  for (int e = rank * kExperts / ranks; e < (rank + 1) * kExperts / ranks; ++e) {
    snprintf(text, sizeof text, "expert%d", e);
    TRY(troupe_options_add_parameter(options, text, expert, 1, TROUPE_F32, TROUPE_EXPERT, error));
  }
  TRY(troupe_session_join(options, session, error));
  TRY(troupe_experts_of(*session, 0, &layer, error));
  return train(*session, layer, error);
}

int main(void) {
  troupe_error error = {TROUPE_OK, ""};
  troupe_session* session = NULL;
  troupe_options* options = troupe_options_new();
  const int failed = run(options, &session, &error) != 0;
  if (failed) fprintf(stderr, "mixture: %s\n", error.message);
  troupe_session_free(session);
  troupe_options_free(options);
  return failed;
}

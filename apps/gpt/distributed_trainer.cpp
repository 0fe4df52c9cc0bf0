#include "apps/gpt/distributed_trainer.hpp"

namespace troupe::apps::gpt {

using core::Result;

std::vector<actors::ParameterSpec> session_parameters(const ParameterTable& table) {
  std::vector<actors::ParameterSpec> specs;
  for (const auto& spec : table.specs) {
    actors::ParameterSpec parameter;
    parameter.name = spec.name;
    for (std::size_t extent : spec.shape) parameter.shape.push_back(static_cast<std::int64_t>(extent));
    parameter.weight_decay = spec.weight_decay;
    specs.push_back(std::move(parameter));
  }
  return specs;
}

Result<std::unique_ptr<DistributedTrainer>> DistributedTrainer::create(
    actors::RankWorld& world, const DistributedTrainerOptions& options, const Corpus& corpus) {
  Model model = TRY(Model::create(options.model, options.microbatch));
  std::unique_ptr<DistributedTrainer> trainer(new DistributedTrainer(options, corpus, std::move(model)));
  const auto& table = trainer->model_.table();
  trainer->session_ = TRY(actors::Session::join(world, options.session, session_parameters(table)));
  for (std::uint32_t i = 0; i < table.specs.size(); ++i) {
    auto values = trainer->session_->parameter(i);
    initialise(table.specs[i], options.seed, values);
    trainer->readable_.push_back(values.data());
  }
  trainer->gradients_.resize(table.specs.size());
  return trainer;
}

DistributedTrainer::DistributedTrainer(const DistributedTrainerOptions& options, const Corpus& corpus,
                                       Model model)
    : options_(options), corpus_(&corpus), model_(std::move(model)), batch_(options.microbatch) {}

std::int64_t DistributedTrainer::tokens_per_step() const {
  const auto& training = session_->plan().options;
  return static_cast<std::int64_t>(options_.microbatch.batch * options_.microbatch.length) * training.lanes *
         training.microbatches;
}

Result<double> DistributedTrainer::run_lane(core::Lane lane) {
  TRY(session_->begin_lane(lane));
  for (std::uint32_t i = 0; i < gradients_.size(); ++i) gradients_[i] = session_->gradient(i).data();
  const StepHooks hooks{
      .before_use = [this](std::size_t p) { return session_->before_use(static_cast<std::uint32_t>(p)); },
      .gradient_ready = [this](std::size_t p) { session_->gradient_ready(static_cast<std::uint32_t>(p)); }};
  const int microbatches = session_->plan().options.microbatches;
  double loss = 0;
  for (int m = 0; m < microbatches; ++m) {
    session_->begin_microbatch(m);
    batch_.fill_at_random(corpus_->training(),
                          {options_.seed, session_->next_step(), lane, static_cast<std::uint32_t>(m)});
    loss += TRY(model_.forward_backward(readable_, gradients_, batch_.tokens(), batch_.targets(), hooks));
  }
  return loss / microbatches;
}

Result<actors::StepOutcome> DistributedTrainer::step(std::uint32_t wishes) {
  TRY(session_->begin_step(learning_rate()));
  for (core::Lane lane : session_->lanes()) session_->end_lane(TRY(run_lane(lane)));
  return session_->finish_step({}, wishes);
}

Result<std::optional<actors::Restored>> DistributedTrainer::resume(const actors::RestoreOptions& options) {
  return session_->restore(options);
}

core::Value DistributedTrainer::description() const {
  using core::Value;
  const auto number = [](auto value) { return Value(static_cast<std::int64_t>(value)); };
  const auto& training = session_->plan().options;
  const auto& schedule = options_.schedule;
  return Value::Map{{"program", "gpt"},
                    {"seed", number(options_.seed)},
                    {"lanes", number(training.lanes)},
                    {"microbatches", number(training.microbatches)},
                    {"sequences", number(options_.microbatch.batch)},
                    {"context", number(options_.microbatch.length)},
                    {"schedule", Value::Map{{"peak", schedule.peak},
                                            {"floor", schedule.floor},
                                            {"warmup", schedule.warmup.value},
                                            {"total", schedule.total.value}}}};
}

Result<void> DistributedTrainer::save() {
  TRY(session_->save(description()));
  return {};
}

Result<void> DistributedTrainer::save_local() {
  TRY(session_->save_local(description()));
  return {};
}

Result<Model::Parameters> DistributedTrainer::parameters() {
  TRY(session_->publish_all());
  return Model::Parameters(readable_);
}

Result<double> DistributedTrainer::evaluate(std::size_t batches) {
  Model::Parameters readable = TRY(parameters());
  double total = 0;
  for (std::size_t i = 0; i < batches; ++i) {
    batch_.fill_evenly(corpus_->evaluation(), i, batches);
    total += TRY(model_.forward_loss(readable, batch_.tokens(), batch_.targets()));
  }
  return total / static_cast<double>(batches);
}

}  // namespace troupe::apps::gpt

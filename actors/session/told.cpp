#include "actors/session/told.hpp"

#include <string>

#include "actors/roles/machine.hpp"
#include "core/optimizer/large_gradients.hpp"

namespace troupe::actors {

namespace {

template <class Over>
std::string end_of(const Over& over, std::string good) {
  return over.failure.failed ? "failed: " + over.failure.message : good;
}

}  // namespace

void say_to_people(const messages::Message& told, const Logger& log) {
  if (const auto* note = std::get_if<messages::WaitNote>(&told)) log.say(LogLevel::info, note->text);
  if (!log.is_on(LogLevel::debug)) return;
  dispatch(told, Overloaded{[&](const messages::Welcome& welcome) {
                              log.debug("all {} ranks have joined", welcome.members.size());
                            },
                            [&](const messages::StepDecided& decided) {
                              log.debug("step {} {}, the mean loss is {}", decided.step.value,
                                        decided.commit ? "commits" : "does not commit: " + decided.reason,
                                        decided.verdict.loss);
                            },
                            [&](const messages::SaveOver& over) {
                              log.debug("save {} {}", over.sequence,
                                        end_of(over, "is committed as " + over.directory));
                            },
                            [&](const messages::LocalSaveOver& over) {
                              log.debug("local save {} {}", over.sequence, end_of(over, "counts"));
                            },
                            [&](const messages::StepFailed& failed) {
                              log.debug("no further step is decided: {}", failed.failure.message);
                            },
                            [&](const messages::Farewell&) { log.debug("all ranks leave"); }});
}

void warn_of_norm(const messages::StepDecided& decided, double factor, const Logger& log) {
  if (decided.usual_norm == 0) return;
  log.warning(
      "the gradients of step {} have the norm {}, more than {} times {}, the largest of the first {} steps",
      decided.step.value, decided.verdict.gradient_norm, factor, decided.usual_norm,
      core::LargeGradients::kSamples);
}

}  // namespace troupe::actors

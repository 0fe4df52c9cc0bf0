#pragma once

// The fields of a program in the order in which a file has them, once for writing and reading.

#include "core/program/program_file.hpp"

namespace troupe::core {

/// A field that a file leaves out where it has its usual value.
template <class T>
struct Unless {
  T* value;
  T otherwise{};
};
template <class T>
Unless<T> unless_empty(T& value) {
  return {&value, {}};
}

template <class Visit>
void visit_fields(TrainerPoint& point, const Visit& visit) {
  visit("phase", point.phase);
  visit("unit", point.unit);
  visit("round", unless_empty(point.round));
}

template <class Visit>
void visit_fields(TensorReference& tensor, const Visit& visit) {
  visit("kind", tensor.kind);
  visit("unit", tensor.unit);
  visit("tensor", tensor.tensor);
}

template <class Visit>
void visit_fields(Credit& credit, const Visit& visit) {
  visit("pool", credit.pool);
  visit("point", credit.point);
}

template <class Visit>
void visit_fields(CountRun& run, const Visit& visit) {
  visit("elements", run.elements);
  visit("members", run.members);
}

template <class Visit>
void visit_fields(Counts& counts, const Visit& visit) {
  visit("kind", counts.kind);
  visit("runs", counts.runs);
}

template <class Visit>
void visit_fields(RecipeStep& step, const Visit& visit) {
  visit("action", step.action);
  visit("queue", Unless<Queue>{&step.queue, Queue::stream});
  visit("mark", Unless<Mark>{&step.mark, Mark::prepared});
  visit("from", Unless<Place>{&step.from, Place::none});
  visit("to", Unless<Place>{&step.to, Place::none});
  visit("scaled", Unless<bool>{&step.scaled, false});
}

template <class Visit>
void visit_fields(Recipe& recipe, const Visit& visit) {
  visit("before", unless_empty(recipe.before));
  visit("each_chunk", unless_empty(recipe.each_chunk));
  visit("after", unless_empty(recipe.after));
}

template <class Visit>
void visit_fields(ProgramEntry& entry, const Visit& visit) {
  visit("operation", entry.operation);
  visit("tensor", entry.tensor);
  visit("group", entry.group);
  visit("stream", entry.stream);
  visit("from", entry.from);
  visit("to", entry.to);
  visit("wire", entry.wire);
  visit("elements", entry.elements);
  visit("counts", entry.counts);
  visit("chunk", entry.chunk);
  visit("ready", entry.ready);
  visit("needed", entry.needed);
  visit("takes", entry.takes);
  visit("gives", entry.gives);
  visit("averages", Unless<bool>{&entry.averages, false});
  visit("first", entry.first);
  visit("later", entry.later);
}

template <class Visit>
void visit_fields(ProgramRun& run, const Visit& visit) {
  visit("times", run.times);
  visit("unit_step", run.unit_step);
  visit("round", unless_empty(run.round));
  visit("entries", run.entries);
}

template <class Visit>
void visit_fields(ProgramSegment& segment, const Visit& visit) {
  visit("times", segment.times);
  visit("round_step", unless_empty(segment.round_step));
  visit("runs", segment.runs);
}

template <class Visit>
void visit_fields(UnitPass& pass, const Visit& visit) {
  visit("phase", pass.kind);
  visit("round", pass.round);
  visit("first", pass.first);
  visit("end", pass.end);
}

template <class Visit>
void visit_fields(PassRun& run, const Visit& visit) {
  visit("times", run.times);
  visit("round_step", run.round_step);
  visit("passes", run.passes);
}

template <class Visit>
void visit_fields(FlatTensor& tensor, const Visit& visit) {
  visit("class", tensor.tensor_class);
  visit("elements", tensor.elements);
  visit("trainable", tensor.trainable);
}

template <class Visit>
void visit_fields(UnitRun& run, const Visit& visit) {
  visit("count", run.count);
  visit("residency", run.unit.residency);
  visit("use", run.unit.use);
  visit("tensors", run.unit.tensors);
}

template <class Visit>
void visit_fields(Domain& domain, const Visit& visit) {
  visit("axes", domain.axes);
  visit("sizes", domain.sizes);
  visit("scale", domain.scale);
}

template <class Visit>
void visit_fields(AlsoSum& also_sum, const Visit& visit) {
  visit("group", also_sum.group);
  visit("members", also_sum.members);
}

template <class Visit>
void visit_fields(TensorClass& tensor_class, const Visit& visit) {
  visit("storage", tensor_class.storage);
  visit("gradient", tensor_class.gradient);
  visit("wire", tensor_class.wire);
  visit("main", tensor_class.main);
  visit("domain", tensor_class.domain);
  visit("layout", tensor_class.layout);
  visit("optimizer", tensor_class.optimizer.name);
  visit("states", tensor_class.optimizer.states);
  visit("also_sum", unless_empty(tensor_class.also_sum));
  visit("gathered", unless_empty(tensor_class.gathered));
}

template <class Visit>
void visit_fields(StrategyPlacements& placements, const Visit& visit) {
  visit("parameters", placements.parameters);
  visit("gradients", placements.gradients);
  visit("optimizer", placements.optimizer);
}

template <class Visit>
void visit_fields(TrainerOperation& operation, const Visit& visit) {
  visit("operation", operation.kind);
  visit("group", operation.group);
  visit("dtype", operation.dtype);
  visit("counts", operation.counts);
  visit("point", operation.point);
}

template <class Visit>
void visit_fields(OperationRun& run, const Visit& visit) {
  visit("times", run.times);
  visit("unit_step", run.unit_step);
  visit("operations", run.operations);
}

template <class Visit>
void visit_fields(UnitOrder& order, const Visit& visit) {
  visit("forward", order.forward);
  visit("backward", order.backward);
}

template <class Visit>
void visit_fields(Program& program, const Visit& visit) {
  visit("numerics", program.numerics);
  visit("placements", program.placements);
  visit("domains", program.domains);
  visit("classes", program.classes);
  visit("units", program.units);
  visit("order", unless_empty(program.order));
  visit("coordinates", program.coordinates);
  visit("lanes", program.lanes);
  visit("pieces", Unless<int>{&program.pieces.of_lane, 1});
  visit("pieces_of_rank", Unless<int>{&program.pieces.of_rank, 1});
  visit("rounds", program.rounds);
  visit("credits", program.credits);
  visit("verdict_elements", program.verdict_elements);
  visit("optimizer_scratch_bytes", program.optimizer_scratch_bytes);
  visit("streams", program.streams);
  visit("ready_at_points", Unless<bool>{&program.ready_at_points, false});
  visit("recipes", program.recipes);
  visit("finish", unless_empty(program.finish));
  visit("body", program.body);
  visit("last_round", program.last_round);
  visit("epilogue", program.epilogue);
  visit("passes", unless_empty(program.passes));
  visit("pass_segments", unless_empty(program.pass_segments));
  visit("operations", unless_empty(program.operations));
}

template <class Visit>
void visit_fields(PlaceRange& range, const Visit& visit) {
  visit("first", range.first);
  visit("last", range.last);
}

template <class Visit>
void visit_fields(ProgramFile::Part& part, const Visit& visit) {
  visit("ranks", part.places);
  visit("program", part.program);
}

template <class Visit>
void visit_fields(ProgramFile& file, const Visit& visit) {
  visit("sizes", file.sizes);
  visit("programs", file.parts);
}

}  // namespace troupe::core

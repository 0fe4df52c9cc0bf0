#include "core/program/program_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/hash.hpp"
#include "core/program/fold.hpp"

namespace troupe::core {
namespace {

std::string letters(const Placements& placements) {
  std::string text;
  for (const Placement placement : placements) text += "RPF"[static_cast<std::size_t>(placement)];
  return text;
}

std::string own_text(const ProgramEntry& entry) {
  std::string text = fmt::format(" after '{}' before '{}'", describe(entry.ready), describe(entry.needed));
  if (entry.takes) {
    text += fmt::format(" takes {} until '{}'", name_of(entry.takes->pool), describe(entry.takes->point));
  }
  if (entry.gives) {
    text += fmt::format(" gives {} of '{}'", name_of(entry.gives->pool), describe(entry.gives->point));
  }
  return text;
}

template <class Text>
void add_lines(const std::string& name, int times, const std::vector<ProgramRun>& runs, Text text,
               std::vector<std::string>& lines) {
  if (times == 0 || runs.empty()) return;
  lines.push_back(times == 1 ? name + ":" : fmt::format("{} x{}:", name, times));
  for (const ProgramRun& run : runs) {
    if (run.round != 0) lines.push_back(fmt::format(" round {}:", run.round));
    if (run.times > 1) lines.push_back(fmt::format(" x{} unit{:+}:", run.times, run.unit_step));
    for (const ProgramEntry& entry : run.entries) lines.push_back("  " + text(entry));
  }
}

std::vector<ProgramEntry> entries_on(const ProgramSegment& segment, const Communicator& communicator) {
  std::vector<ProgramEntry> found;
  for (const ProgramRun& run : segment.runs) {
    for (int i = 0; i < run.times; ++i) {
      for (const ProgramEntry& entry : run.entries) {
        if (communicator_of(entry) == communicator) found.push_back(shifted(entry, i * run.unit_step));
      }
    }
  }
  return found;
}

/// Only what members have in common, so that they fold alike.
std::vector<ProgramEntry> common_entries(const ProgramSegment& segment, const Communicator& communicator) {
  auto entries = entries_on(segment, communicator);
  for (ProgramEntry& entry : entries) {
    entry.ready = entry.needed = {};
    entry.takes = entry.gives = std::nullopt;
    entry.first = entry.later = 0;
  }
  return entries;
}

std::vector<ProgramRun> common_runs(const ProgramSegment& segment, const Communicator& communicator) {
  // A segment that never runs has no lines.
  if (segment.times == 0) return {};
  return fold(common_entries(segment, communicator));
}

/// The lines of a list of passes, folded only by what members have in common.
template <class Text>
void add_pass_lines(const std::vector<ProgramSegment>& segments, Text text, std::vector<std::string>& lines) {
  for (const ProgramSegment& segment : segments) {
    const auto name = segment.times > 1 ? fmt::format("passes round{:+}", segment.round_step) : "passes";
    add_lines(name, segment.times, segment.runs, text, lines);
  }
}

std::vector<ProgramSegment> common_segments(const Program& program, const Communicator& communicator) {
  std::vector<PlacedEntry> entries;
  for (const ProgramSegment& segment : program.pass_segments) {
    for (int time = 0; time < segment.times; ++time) {
      for (const ProgramRun& run : segment.runs) {
        const ProgramSegment one{.times = 1, .runs = {run}};
        for (const ProgramEntry& entry : common_entries(one, communicator)) {
          entries.push_back({entry, run.round + time * segment.round_step});
        }
      }
    }
  }
  return fold(entries);
}

}  // namespace

std::string common_text(const ProgramEntry& entry) {
  std::string text = spans_stages(entry) ? "sum over stages of gradients" : describe(entry);
  if (!entry.from.empty()) text += fmt::format(" {}->{}", letters(entry.from), letters(entry.to));
  text +=
      fmt::format(" group={} stream={} dtype={} elements={} counts={} {}", name_of(entry.group), entry.stream,
                  name_of(entry.wire), entry.elements, name_of(entry.counts.kind), entry.counts.text());
  if (entry.chunk > 0) text += fmt::format(" chunk={}", entry.chunk);
  if (entry.averages) text += " average";
  return text;
}

std::string describe(const Communicator& communicator) {
  return fmt::format("{} on stream {}", name_of(communicator.group), communicator.stream);
}

Communicator communicator_of(const ProgramEntry& entry) {
  return {entry.group, entry.stream};
}

std::vector<Communicator> communicators(const Program& program) {
  std::vector<Communicator> found;
  for (const ProgramSegment* segment : program.segments()) {
    for (const ProgramRun& run : segment->runs) {
      for (const ProgramEntry& entry : run.entries) {
        const auto communicator = communicator_of(entry);
        if (std::find(found.begin(), found.end(), communicator) == found.end()) found.push_back(communicator);
      }
    }
  }
  return found;
}

namespace {

template <class Text>
std::vector<std::string> lines_of(const Program& program, Text text) {
  std::vector<std::string> found;
  if (program.ready_at_points) found.push_back("ready at the ends of points alone");
  add_lines("round", program.body.times, program.body.runs, text, found);
  add_lines("last round", 1, program.last_round.runs, text, found);
  add_pass_lines(program.pass_segments, text, found);
  add_lines("end", 1, program.epilogue.runs, text, found);
  for (const Finish finish : program.finish) found.push_back(fmt::format("finish: {}", name_of(finish)));
  const auto operations = lines(program.operations);
  found.insert(found.end(), operations.begin(), operations.end());
  return found;
}

}  // namespace

std::vector<std::string> lines(const Program& program) {
  return lines_of(program, [](const ProgramEntry& entry) { return common_text(entry) + own_text(entry); });
}

std::vector<std::string> lines_with_recipes(const Program& program) {
  const auto recipe = [&](int number) { return describe(program.recipes[static_cast<std::size_t>(number)]); };
  return lines_of(program, [&](const ProgramEntry& entry) {
    std::string text = common_text(entry) + own_text(entry) + ": " + recipe(entry.first);
    if (entry.later != entry.first) text += "; later: " + recipe(entry.later);
    return text;
  });
}

std::vector<std::string> lines(const Program& program, const Communicator& communicator) {
  std::vector<std::string> found;
  add_lines("round", program.body.times, common_runs(program.body, communicator), common_text, found);
  add_lines("last round", 1, common_runs(program.last_round, communicator), common_text, found);
  add_pass_lines(common_segments(program, communicator), common_text, found);
  add_lines("end", 1, common_runs(program.epilogue, communicator), common_text, found);
  return found;
}

std::vector<std::string> compared_lines(const Program& program) {
  std::vector<std::string> found;
  for (const Communicator& communicator : communicators(program)) {
    found.push_back(describe(communicator));
    const auto own = lines(program, communicator);
    found.insert(found.end(), own.begin(), own.end());
  }
  // What each rank does for itself, too: all of it follows from the same inputs, operations included.
  const auto all = lines_with_recipes(program);
  found.insert(found.end(), all.begin(), all.end());
  return found;
}

std::uint64_t hash(const Program& program, const Communicator& communicator) {
  return hash64(fmt::format("{}\n", fmt::join(lines(program, communicator), "\n")));
}

}  // namespace troupe::core

#include "apps/report/perfetto.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

namespace troupe::apps {

using core::TraceEvent;
using std::chrono::nanoseconds;

namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// The thread on which a span is drawn.
struct Placed {
  const TraceEvent* event;
  int thread;
};

/// Writes the events of one rank after another. Process and thread 0 have a special meaning to viewers, so
/// numbers begin at 1; threads are numbered across all processes.
class Writer {
 public:
  explicit Writer(nanoseconds origin) : origin_(origin) {}

  void add_rank(const RankTrace& trace) {
    process_ = trace.rank.value + 1;
    add("\"ph\":\"M\",\"name\":\"process_name\",\"tid\":0,\"args\":{{\"name\":\"rank {}\"}}",
        trace.rank.value);
    add("\"ph\":\"M\",\"name\":\"process_sort_index\",\"tid\":0,\"args\":{{\"sort_index\":{}}}",
        trace.rank.value);

    std::map<std::string, std::vector<const TraceEvent*>> tracks;
    for (const TraceEvent& event : trace.events) {
      if (event.kind == TraceEvent::Kind::counter) {
        add("\"ph\":\"C\",\"name\":{},\"tid\":0,\"ts\":{},\"args\":{{\"value\":{}}}",
            quoted(event.track.empty() ? event.name : event.track + ": " + event.name), time(event.begin),
            nlohmann::json(event.value).dump());
      } else {
        tracks[event.track].push_back(&event);
      }
    }
    std::map<std::uint64_t, std::vector<Placed>> flows;
    for (auto& [name, events] : tracks) add_track(name, events, flows);
    for (auto& [id, spans] : flows) add_flow(spans);
  }

  std::string finish() && { return std::move(text_) + "\n],\"displayTimeUnit\":\"ns\"}\n"; }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), "{}{{\"pid\":{},", first_ ? "\n" : ",\n", process_);
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '}';
    first_ = false;
  }

  /// Microseconds since the origin, to the nanosecond and without rounding.
  std::string time(nanoseconds at) const { return microseconds(at - origin_); }
  static std::string microseconds(nanoseconds span) {
    return fmt::format("{}.{:03}", span.count() / 1000, span.count() % 1000);
  }

  int new_thread(const std::string& name) {
    ++threads_;
    add("\"ph\":\"M\",\"name\":\"thread_name\",\"tid\":{},\"args\":{{\"name\":{}}}", threads_, quoted(name));
    add("\"ph\":\"M\",\"name\":\"thread_sort_index\",\"tid\":{},\"args\":{{\"sort_index\":{}}}", threads_,
        threads_);
    return threads_;
  }

  void add_track(const std::string& name, std::vector<const TraceEvent*>& events,
                 std::map<std::uint64_t, std::vector<Placed>>& flows) {
    // An outer span comes before those inside it.
    std::stable_sort(events.begin(), events.end(), [](const TraceEvent* a, const TraceEvent* b) {
      return std::tuple(a->begin, b->end) < std::tuple(b->begin, a->end);
    });
    struct Thread {
      int id;
      std::vector<nanoseconds> open;  // ends of the open spans, the innermost last
    };
    std::vector<Thread> threads;
    const auto thread_for = [&](const TraceEvent& span) {
      for (Thread& thread : threads) {
        while (!thread.open.empty() && thread.open.back() <= span.begin) thread.open.pop_back();
        if (thread.open.empty() || span.end <= thread.open.back()) return &thread;
      }
      const auto number = threads.size() + 1;
      threads.push_back({new_thread(number == 1 ? name : fmt::format("{} ({})", name, number)), {}});
      return &threads.back();
    };
    for (const TraceEvent* event : events) {
      Thread* thread = thread_for(*event);
      if (event->kind == TraceEvent::Kind::instant) {
        add("\"ph\":\"i\",\"s\":\"t\",\"name\":{},\"tid\":{},\"ts\":{}", quoted(event->name), thread->id,
            time(event->begin));
        continue;
      }
      thread->open.push_back(event->end);
      add("\"ph\":\"X\",\"name\":{},\"tid\":{},\"ts\":{},\"dur\":{}", quoted(event->name), thread->id,
          time(event->begin), microseconds(event->end - event->begin));
      if (event->flow != 0) flows[event->flow].push_back({event, thread->id});
    }
  }

  /// An arrow through the spans in the order in which they began. Ids are the trace's own, because ranks use
  /// the same ones for unrelated flows.
  void add_flow(std::vector<Placed>& spans) {
    if (spans.size() < 2) return;
    std::stable_sort(spans.begin(), spans.end(),
                     [](const Placed& a, const Placed& b) { return a.event->begin < b.event->begin; });
    ++flows_;
    for (const Placed& span : spans) {
      const char* phase = &span == &spans.front() ? "s" : &span == &spans.back() ? "f" : "t";
      add("\"ph\":\"{}\",\"bp\":\"e\",\"cat\":\"flow\",\"name\":\"flow\",\"id\":{},\"tid\":{},\"ts\":{}",
          phase, flows_, span.thread, time(span.event->begin));
    }
  }

  nanoseconds origin_;
  std::string text_ = "{\"traceEvents\":[";
  bool first_ = true;
  int process_ = 0;
  int threads_ = 0;
  std::uint64_t flows_ = 0;
};

}  // namespace

std::string perfetto_json(const std::vector<RankTrace>& ranks) {
  nanoseconds origin = nanoseconds::max();
  for (const RankTrace& trace : ranks) {
    for (const TraceEvent& event : trace.events) origin = std::min(origin, event.begin);
  }
  Writer writer(origin);
  for (const RankTrace& trace : ranks) writer.add_rank(trace);
  return std::move(writer).finish();
}

}  // namespace troupe::apps

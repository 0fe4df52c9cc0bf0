#include "core/values/json_check.hpp"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

namespace troupe::core {

namespace {

using Json = nlohmann::json;

/// Handles the events of a JSON parser. Json::parse() with a callback would scan an object again for each
/// object inside it.
class Checker {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  Checker(std::size_t most_levels, std::size_t most_items)
      : most_levels_(most_levels), most_items_(most_items) {}

  bool null() { return item(); }
  bool boolean(bool) { return item(); }
  bool number_integer(number_integer_t) { return item(); }
  bool number_unsigned(number_unsigned_t) { return item(); }
  bool number_float(number_float_t, const string_t&) { return item(); }
  bool string(string_t&) { return item(); }
  bool binary(binary_t&) { return false; }
  bool start_object(std::size_t) { return start(true); }
  bool start_array(std::size_t) { return start(false); }
  bool end_object() { return end(); }
  bool end_array() { return end(); }
  bool key(string_t& name) {
    if (!open_.back().names.insert(name).second) twice_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) { return false; }

  std::string take_twice() { return std::move(twice_); }

 private:
  struct Open {
    bool is_object = false;
    std::size_t items = 0;
    std::set<std::string> names;
  };

  bool item() { return open_.empty() || open_.back().is_object || ++open_.back().items <= most_items_; }
  bool start(bool is_object) {
    if (!item() || open_.size() == most_levels_) return false;
    open_.push_back({is_object, 0, {}});
    return true;
  }
  bool end() {
    open_.pop_back();
    return true;
  }

  std::size_t most_levels_;
  std::size_t most_items_;
  std::vector<Open> open_;
  std::string twice_;
};

}  // namespace

JsonCheck check_json(std::string_view text, std::size_t most_levels, std::size_t most_items) {
  Checker checker(most_levels, most_items);
  JsonCheck check;
  check.fits = Json::sax_parse(text, &checker);
  check.twice = checker.take_twice();
  return check;
}

}  // namespace troupe::core

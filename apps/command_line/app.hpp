#pragma once

namespace CLI {

/// CLI11's, for headers that only pass it on: the library is all headers, and costs five seconds wherever it
/// is compiled.
class App;

}  // namespace CLI

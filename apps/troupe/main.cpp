#include "apps/troupe/commands.hpp"

int main(int argc, char** argv) {
  return troupe::apps::run_troupe(argc, argv);
}

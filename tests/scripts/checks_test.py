"""The checks of the tree, on snippets."""

import importlib.machinery
import importlib.util
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def load(name):
    loader = importlib.machinery.SourceFileLoader(name, str(SCRIPTS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


coverage = load("coverage")
layers = load("check_layers")
reached = load("check_reached")
style = load("check_style")
run_tests = load("run_tests")


class Layers(unittest.TestCase):
    def refuses(self, path, include, word):
        found = layers.violations(path, f"#pragma once\n#include {include}\n", exists=lambda name: True)
        self.assertEqual(len(found), 1, f"{path} must not include {include}")
        self.assertIn(word, found[0])
        self.assertTrue(found[0].startswith(f"{path}:2: "), found[0])

    def takes(self, path, include):
        self.assertEqual(layers.violations(path, f"#include {include}\n", exists=lambda name: True), [])

    def test_includes_go_down_and_never_up(self):
        order = ["core", "posix", "messages", "gpu", "actors", "apps"]
        for upper, lower in ((u, l) for i, u in enumerate(order) for l in order[:i]):
            self.refuses(f"{lower}/a.cpp", f'"{upper}/b.hpp"', f"{lower}/ may include")
            if (upper, lower) not in {("gpu", "messages"), ("messages", "posix")}:
                self.takes(f"{upper}/a.cpp", f'"{lower}/b.hpp"')

    def test_the_gpu_knows_no_messages(self):
        self.refuses("gpu/a.cpp", '"messages/step.hpp"', "may include core, gpu, posix")

    def test_only_what_reaches_the_system_knows_posix(self):
        self.takes("actors/world/storage/posix.cpp", '"posix/descriptor.hpp"')
        self.refuses("messages/codec.cpp", '"posix/descriptor.hpp"', "may include core, messages")
        self.refuses("actors/roles/conductor.cpp", '"posix/descriptor.hpp"', "may include actors, core, messages")
        self.refuses("posix/entropy.cpp", '"messages/codec.hpp"', "may include core, posix")

    def test_nobody_includes_tests(self):
        self.refuses("apps/gpt/run/main.cpp", '"tests/support/a.hpp"', "may include")
        self.takes("tests/core/a_test.cpp", '"tests/support/a.hpp"')

    def test_apps_reach_cuda_through_the_device(self):
        self.refuses("apps/gpt/run/main.cpp", '"gpu/cuda/device.hpp"', "gpu/device.hpp")
        self.takes("apps/gpt/run/main.cpp", '"gpu/device.hpp"')

    def test_an_include_is_a_path_from_the_root(self):
        self.refuses("core/a.cpp", '"a.hpp"', "full path")
        found = layers.violations("core/a.cpp", '#include "core/gone.hpp"\n', exists=lambda name: False)
        self.assertIn("core/gone.hpp", found[0])

    def test_includes_go_down_the_floors(self):
        self.takes("actors/session/session.cpp", '"actors/planes/step/data_plane.hpp"')
        self.takes("actors/planes/step/data_plane.cpp", '"actors/roles/work.hpp"')
        self.refuses("actors/planes/step/data_plane.cpp", '"actors/session/session.hpp"', "actors/planes may include")
        self.refuses("actors/roles/conductor.cpp", '"actors/shell/tracer.hpp"', "no other floor")
        self.refuses("actors/roles/conductor.cpp", '"gpu/device.hpp"', "core, messages")
        self.refuses("actors/world/network.hpp", '"actors/roles/machine.hpp"', "no other floor")
        self.refuses("actors/cellar/a.cpp", '"actors/roles/machine.hpp"', "give it a place")
        self.takes("core/checkpoint/manifest.cpp", '"core/boxes/box.hpp"')
        self.refuses("core/boxes/box.cpp", '"core/checkpoint/manifest.hpp"', "core/boxes may include core, not")
        self.refuses("core/dtype.cpp", '"core/plan/mesh.hpp"', "no other floor")

    def test_a_trainers_model_knows_neither_its_options_nor_the_tool(self):
        self.takes("apps/gpt/run/command.cpp", '"apps/gpt/options/options.hpp"')
        self.refuses("apps/gpt/model/block.cpp", '"apps/gpt/options/run_options.hpp"', "apps/gpt/model may include")
        self.refuses("apps/gpt/layers/rotary.hpp", '"apps/gpt/model/config.hpp"', "no other floor")
        self.refuses("apps/gpt/pretrained/export_model.cpp", '"apps/troupe/checkpoint/show.hpp"', "apps/gpt may include")
        self.refuses("apps/files/source.cpp", '"apps/troupe/checkpoint/show.hpp"', "apps/files may include")
        self.takes("apps/troupe/launch/job.cpp", '"apps/troupe/host/host_facts.hpp"')

    def test_only_what_chooses_among_back_ends_climbs_to_them(self):
        self.takes("gpu/devices.cpp", '"gpu/host/host_device.hpp"')
        self.refuses("gpu/device.hpp", '"gpu/host/host_device.hpp"', "no other floor")
        self.takes("gpu/collective/open.cpp", '"gpu/collective/tcp/tcp_backend.hpp"')
        self.refuses("gpu/collective/reduce.cpp", '"gpu/collective/tcp/mesh.hpp"', "no other floor")

    def test_the_table_of_floors_has_no_circle(self):
        for floors in layers.FLOORS.values():
            done = set()
            while len(done) < len(floors):
                free = {floor for floor, below in floors.items() if floor not in done and below <= done}
                self.assertTrue(free, set(floors) - done)
                done |= free

    def test_caf_stays_in_the_shell(self):
        self.takes("actors/shell/caf_seam.hpp", "<caf/actor.hpp>")
        self.refuses("actors/roles/conductor.cpp", "<caf/actor.hpp>", "CAF")
        self.refuses("actors/roles/work.hpp", "<caf/actor.hpp>", "CAF")
        self.refuses("apps/gpt/run/main.cpp", "<caf/actor.hpp>", "CAF")
        self.refuses("actors/shell/caf_seam.hpp", "<caf/all.hpp>", "heavy")

    def test_asio_stays_in_the_world_and_the_launcher(self):
        self.takes("actors/world/transport/tcp.cpp", "<asio.hpp>")
        self.takes("apps/troupe/launch/pipes.cpp", "<asio/ip/tcp.hpp>")
        self.refuses("apps/troupe/main.cpp", "<asio.hpp>", "Asio")
        self.refuses("actors/shell/role_host.cpp", "<asio/io_context.hpp>", "Asio")

    def test_each_engine_stays_in_its_file(self):
        self.takes("posix/authentication.cpp", "<sodium.h>")
        self.refuses("gpu/collective/tcp/introduction.cpp", "<sodium.h>", "libsodium")
        self.takes("gpu/collective/nccl/cuda/abi_check.cpp", "<nccl.h>")
        self.refuses("actors/shell/caf_stage.cpp", "<nccl.h>", "NCCL")
        self.takes("gpu/cuda/stream.cpp", "<cuda_runtime.h>")
        self.refuses("gpu/stream.cpp", "<cuda_runtime.h>", "CUDA")
        self.refuses("gpu/host/kernels.cpp", "<cblas.h>", "BLAS")

    def test_pure_files_do_no_io_and_know_no_threads(self):
        self.refuses("core/plan/plan.cpp", "<thread>", "pure")
        self.refuses("messages/codec.cpp", "<fstream>", "pure")
        self.refuses("actors/roles/conductor.hpp", "<mutex>", "pure")
        self.refuses("core/plan/plan.cpp", "<unistd.h>", "operating system")
        self.refuses("actors/roles/conductor.cpp", "<sys/mman.h>", "operating system")
        self.takes("gpu/host/memory.cpp", "<sys/mman.h>")
        self.takes("actors/roles/conductor.hpp", "<vector>")

    def test_a_library_without_a_place_is_asked_about(self):
        self.refuses("apps/gpt/run/main.cpp", "<Eigen/Dense>", "does not know")

    def test_tests_may_use_every_library(self):
        self.takes("tests/actors/a_test.cpp", "<caf/actor.hpp>")
        self.refuses("actors/shell/caf_stage.cpp", "<gtest/gtest.h>", "GoogleTest")

    def test_the_tree_itself_is_read(self):
        self.assertIn("core/result.hpp", layers.source_files())


class Summary(unittest.TestCase):
    LOG = ("a_test.cpp:7: Skipped\nno GPU\n\nb_test.cpp:9: Skipped\nno AVX2\n\na_test.cpp:7: Skipped\nno GPU\n"
           "c_test.cpp:1: Failure\n")

    def test_what_was_skipped_is_one_line_and_the_result_comes_last(self):
        lines = ["75% tests passed, 1 tests failed out of 4", "", "Total Test time (real) =   2.00 sec", "",
                 "The following tests did not run:", "\t  1 - A.b (Skipped)", "\t  2 - A.c (Skipped)",
                 "\t  3 - B.d (Skipped)", "", "The following tests FAILED:", "\t  4 - C.e (Failed)",
                 "Errors while running CTest"]
        self.assertEqual(run_tests.summary(lines, self.LOG),
                         ["The following tests FAILED:", "\t  4 - C.e (Failed)", "Errors while running CTest",
                          "3 skipped: 2 no GPU; 1 no AVX2", "75% tests passed, 1 tests failed out of 4",
                          "Total Test time (real) =   2.00 sec"])

    def test_what_did_not_run_for_another_reason_is_still_listed(self):
        lines = ["100% tests passed, 0 tests failed out of 1", "The following tests did not run:",
                 "\t  1 - A.b (Disabled)"]
        self.assertEqual(run_tests.summary(lines, ""),
                         ["\t  1 - A.b (Disabled)", "100% tests passed, 0 tests failed out of 1"])


class Style(unittest.TestCase):
    def test_a_function_of_seventy_lines_passes_and_one_more_does_not(self):
        for body, count in ((68, 0), (69, 1)):
            text = "namespace a {\nint f(int x) {\n" + "  ++x;\n" * body + "}\n}\n"
            self.assertEqual(len(style.long_functions(style.code_only(text))), count)

    def test_a_long_class_is_no_function(self):
        text = "class A {\n public:\n" + "  int f() const { return 1; }\n" * 90 + "};\n"
        self.assertEqual(style.long_functions(style.code_only(text)), [])

    def test_a_long_lambda_counts_for_its_function(self):
        text = "void f() {\n  g([&] {\n" + "    h();\n" * 80 + "  });\n}\n"
        self.assertEqual([(line, name) for line, name, _ in style.long_functions(text)], [(1, "f")])

    def test_a_constructor_with_initialisers_is_found(self):
        text = "A::A(int x) : x_{x}, y_{1, 2} {\n" + "  ++x_;\n" * 80 + "}\n"
        self.assertEqual([name for _, name, _ in style.long_functions(text)], ["A::A"])

    def test_braces_in_literals_comments_and_macros_do_not_count(self):
        text = 'void f() {\n  s = "{{{";  // {\n  c = \'{\';\n}\n#define M(x) \\\n  {\nvoid g() {\n}\n'
        self.assertNotIn("{{", style.code_only(text))
        self.assertEqual(style.code_only(text).count("{"), style.code_only(text).count("}"))

    def test_a_file_has_five_hundred_lines_at_most(self):
        self.assertEqual(style.source_violations("core/a.cpp", "int a;\n" * 500), [])
        self.assertEqual(len(style.source_violations("core/a.cpp", "int a;\n" * 501)), 1)

    def test_lines_are_narrow_except_addresses_and_tables(self):
        wide = "x" * 110
        self.assertEqual(style.source_violations("core/a.cpp", f"{wide}\n"), [])
        self.assertEqual(len(style.source_violations("core/a.cpp", f"{wide}x\n")), 1)
        self.assertEqual(style.source_violations("core/a.cpp", f"// https://{wide}\n/// | {wide} |\n"), [])

    def test_the_world_is_reached_through_seams(self):
        for use in ("auto t = std::chrono::steady_clock::now();", "std::thread t(f);", 'std::getenv("A");',
                    "std::this_thread::sleep_for(1s);", "std::random_device device;"):
            seam = "posix/entropy.cpp" if "random" in use else "actors/world/real.cpp"
            self.assertEqual(len(style.source_violations("actors/roles/conductor.cpp", use + "\n")), 1, use)
            self.assertEqual(style.source_violations(seam, use + "\n"), [], use)
            self.assertEqual(style.source_violations("core/a.cpp", "// " + use + "\n"), [], use)

    def test_names_of_tests_have_nine_words_at_most(self):
        nine = "AHasTheBitsOfOneRankOnBf16"
        for macro in ("TEST", "TEST_P", "TYPED_TEST", "RC_GTEST_PROP"):
            test = f"{macro}(Suite, %s) {{\n}}\n"
            self.assertEqual(style.source_violations("tests/core/a_test.cpp", test % nine), [])
            self.assertEqual(style.source_violations("tests/core/a_test.cpp", test % f"DISABLED_{nine}"), [])
            self.assertEqual(len(style.source_violations("tests/core/a_test.cpp", test % f"{nine}Too")), 1)

    def test_tests_do_not_sleep(self):
        self.assertEqual(len(style.source_violations("tests/core/a_test.cpp", "std::this_thread::sleep_for(1s);\n")), 1)
        self.assertEqual(style.source_violations("tests/core/a_test.cpp", "std::thread t(f);\n"), [])

    def test_try_stands_first_in_a_braced_list(self):
        def leaks(text):
            return [line.split(": ")[0] for line in style.source_violations("a.cpp", text) if "leaks" in line]

        self.assertEqual(leaks("f() {\n  list.push_back({name, TRY(size_of(name))});\n}\n"), ["a.cpp:2"])
        self.assertEqual(leaks("f() {\n  const Part part{.a = 1,\n      .b = TRY(b())};\n}\n"), ["a.cpp:3"])
        self.assertEqual(leaks("f() {\n  return {{TRY(a()), b}, c};\n}\n"), [])
        self.assertEqual(leaks("f() {\n  g(a, TRY(b()));\n  list = {TRY(a())};\n}\n"), [])
        self.assertEqual(leaks("void f(int a, int b) {\n  for (int i : {1, 2}) TRY(h(i, a));\n}\n"), [])
        self.assertEqual(leaks("auto f = [&](int a, int b) {\n  // One, two.\n  TRY(g());\n};\n"), [])

    def test_results_are_not_thrown_away(self):
        declared = ("core::Result<void> send(int to);\nResult<std::map<int, int>> Log::read_all(int at);\n"
                    "std::function<core::Result<void>()> settle;\nvoid wake();\n")
        results = style.names_of_results([declared])
        for thrown in ("(void)network->send(3);", "(void)log_.read_all(at(1));", "static_cast<void>(send(1));",
                       "std::ignore = peers[2].settle();", "if (group) (void)TRY(group->use());"):
            found = style.source_violations("actors/a.cpp", f"void f() {{\n  {thrown}\n}}\n", results)
            self.assertEqual(len(found), 1, thrown)
            self.assertIn("a.cpp:2: the result of ", found[0])
        for taken in ("TRY(send(3));", "(void)wake();", "(void)argument;", 'core::disregard(send(3), "why");',
                      "auto sent = send(1);"):
            self.assertEqual(style.source_violations("actors/a.cpp", f"void f() {{ {taken} }}\n", results), [], taken)

    def test_a_source_includes_its_own_header_first(self):
        paths = {"core/a.hpp", "core/a.cpp"}
        own, other = '#include "core/a.hpp"\n', '#include "core/b.hpp"\n'
        self.assertEqual(style.own_header_violations("core/a.cpp", "// why\n" + own + other, paths), [])
        self.assertEqual(style.own_header_violations("core/main.cpp", other, paths), [])
        for text in (other + own, "#include <vector>\n" + own, "int a;\n"):
            self.assertEqual(len(style.own_header_violations("core/a.cpp", text, paths)), 1, text)

    def test_paths_of_one_machine_are_found_and_relative_ones_are_not(self):
        for text in ("cd /ro" "ot/x", "see /wo" "rk", '"/home' '/ann/data"'):
            self.assertEqual(len(style.path_violations("a.md", text)), 1, text)
        for text in ("actors/roles/work.hpp", "${HOME}/work", "./work", "https://a.b/work/", "/tmp/x"):
            self.assertEqual(style.path_violations("a.md", text), [], text)

    def test_groups_are_made_where_their_operations_are_put_in_order(self):
        text = "auto group = backend->create_group(options);"
        for path in ("apps/gpt/trainer.cpp", "actors/planes/step/data_plane.cpp", "actors/simulation/rank.cpp"):
            found = layers.violations(path, "// a line\n" + text)
            self.assertEqual(len(found), 1, path)
            self.assertTrue(found[0].startswith(f"{path}:2: create_group("), found[0])
        for path in ("gpu/collective/open.cpp", "actors/session/groups.cpp", "tests/gpu/group_test.cpp"):
            self.assertEqual(layers.violations(path, text), [], path)

    def test_experts_are_decided_about_in_one_place(self):
        for text in ("core::route<float>(router, logits, bias, choices);", "auto d = core::dispatch<T>(count, experts);",
                     "TRY(core::expert_capacity(tokens, choices, experts, factor))", "plan_exchange(owners, 0, counts, 9)",
                     "update_expert_bias(biases, counts, rate);", "chosen[e] += dropped[e];", "bias_[layer][e] -= rate;"):
            for path in ("apps/gpt/model/expert_layer.cpp", "actors/session/expert_layers.cpp", "core/plan/mesh.cpp"):
                self.assertEqual(len(layers.violations(path, "// a line\n" + text)), 1, (path, text))
            for path in ("core/experts/decision.cpp", "actors/roles/expert_group.cpp", "actors/planes/experts/plane.cpp"):
                self.assertEqual(layers.violations(path, text), [], (path, text))
        for text in ("core::route_backward<T>(router, logits);", "core::decide_alone<T>(rows, 1, decision);",
                     "layer.dispatch(routes, slots);", "d_bias[c] += d_out[c];", "const auto bias = biases[layer];"):
            self.assertEqual(layers.violations("apps/gpt/a.cpp", text), [], text)

    def test_phrases_that_read_as_translated_are_found_and_their_like_are_not(self):
        for text in ("it can" " not be", "which hangs" " on the seed", "sent one" " a rank", "released once" " a save,",
                     "// it is held" "\n// against its hash", "/// where they come" "\n  /// to lie",
                     "what there i" "s of it", "it i" "s of unit 3", "\nTEST(A, Can" "NotBe)", "/// O" "f the last pass.",
                     "\nTEST_P(A, Is" "OfUnit3)", "\nTEST(A, Ends" "WhenItIsOver)", "/// A" "s f(), but", "/* O" "f it */",
                     "It waits. O" "f two ranks one does", '"""O' "f a rank.", "/// Un" "til it ends.",
                     "/// The same" " of a unit", "x;  ///< like" "wise", "the state" " of after step 3", "in case" " that",
                     "Who" " asks is told", "a file that i" "s no record", "it i" "s no folder", "what ar" "e no words",
                     "a tensor that i" "s none.", "after so" " many steps", "Besid" "e this, it has",
                     "304 s o" "f processors", "5 elements do" " not divide by 2"):
            found = style.phrase_violations("a.md", "Fine\n" + text)
            self.assertEqual(len(found), 1, text)
            self.assertRegex(found[0], r"^a\.md:[23]: ")
        for text in ("it cannot be", "a process that hangs", "one of a rank's", "once a save has begun",
                     "who waits for whom", "Who waits for whom", "holds a lock", "proof after the hello", "Whole",
                     "It waits. Of course.", "/// As long as it runs", "it is of use", "Until it ends, it waits",
                     "\nTEST(A, SpareOfTheSameNode)", "\nTEST(A, RefusesWhatIsNoRecord)", "there is no record",
                     "it is no longer there", "one that is no larger than 3", "so many that it ends", "beside it",
                     "2 s of processor time", "it does not divide by K"):
            self.assertEqual(style.phrase_violations("a.md", text), [], text)

    def test_documents_have_one_width_but_for_tables_and_code(self):
        wide = "x " * 56
        for text in (wide, f"- {wide}", f"```sh\ncode\n```\n{wide}"):
            found = list(style.width_violations("a.md", f"Fine.\n{text}\n"))
            self.assertEqual(len(found), 1, text)
        self.assertTrue(found[0].startswith("a.md:5: 112 columns"), found[0])
        for text in ("x" * 110, f"| {wide} |", f"```\n{wide}\n```", f"[x](https://{'y' * 110})"):
            self.assertEqual(list(style.width_violations("a.md", f"Fine.\n{text}\n")), [], text)

    def test_every_text_of_the_tree_is_searched_for_phrases(self):
        files = [path for path in style.project_files() if style.is_prose(path)]
        for path in ("README.md", "docs/architecture.md", "core/result.hpp", "scripts/check_layers", "CMakeLists.txt"):
            self.assertIn(path, files)
        self.assertFalse([path for path in files if path.startswith("tests/golden/")])


class Reached(unittest.TestCase):
    PROGRAM = {"apps/a/main.cpp": '#include "core/used.hpp"\nint main() {\n  return call();\n}\n',
               "core/used.hpp": "int call();\n",
               "core/used.cpp": '#include "core/used.hpp"\nint call() {\n  return 1;\n}\n'}

    def complaints(self, **more):
        files = {**self.PROGRAM, **{name.replace("__", "/").replace("_DOT_", "."): text for name, text in more.items()}}
        return reached.complaints_about(files, public={"core/public.hpp"}, allowed={"known"})

    def test_what_a_program_calls_is_reached(self):
        self.assertEqual(self.complaints(), [])

    def test_a_header_that_nobody_includes_is_named(self):
        found = self.complaints(core__alone_DOT_hpp="struct Alone {};\n", core__alone_DOT_cpp='#include "core/alone.hpp"\n')
        self.assertIn("core/alone: no program, example, benchmark or public header includes it", found)

    def test_a_function_that_is_only_defined_is_named(self):
        files = dict(self.PROGRAM)
        for more in ("int extra(int a,\n          int b);\n", "std::vector<int> extra();\n", "const T* extra() const;\n"):
            files["core/used.hpp"] = "int call();\n" + more
            files["core/used.cpp"] = self.PROGRAM["core/used.cpp"] + "int Some::extra() {\n  return 2;\n}\n"
            self.assertEqual(reached.complaints_about(files), ["core/used.hpp: the product only declares and defines extra"])

    def test_a_comment_or_a_string_is_no_use(self):
        files = dict(self.PROGRAM)
        files["core/used.hpp"] = "// like extra()\nint call();\nint extra();\n"
        files["core/used.cpp"] += 'const char* text = "extra()";\n'
        self.assertEqual(reached.complaints_about(files), ["core/used.hpp: the product only declares and defines extra"])

    def test_a_call_within_a_return_or_a_product_is_a_use(self):
        files = dict(self.PROGRAM)
        for use in ("return extra();", "a = b * extra();", "f(x, y[k], extra());"):
            files["core/used.hpp"] = "int call();\nint extra();\ninline int more() {\n  " + use + "\n}\nint x = more();\n"
            self.assertEqual(reached.complaints_about(files), [], use)

    def test_public_headers_and_named_exceptions_are_for_others(self):
        self.assertEqual(self.complaints(core__public_DOT_hpp="int for_users();\n"), [])
        files = dict(self.PROGRAM)
        files["core/used.hpp"] += "int known();\n"
        self.assertEqual(reached.complaints_about(files, allowed={"known"}), [])


class Coverage(unittest.TestCase):
    HEAD = "# Requirements\n\nHow to.\n\n## Layouts\n\nOf layouts.\n\n| id | what must hold | note |\n|---|---|---|\n"
    ROWS = ("| layout-1 | starts are aligned | |\n| layout-2 | ends are | open: of experts |\n"
            "| layout-3 | graphs | not ours: no graphs |\n")
    TESTS = ("// Covers layout-1, layout-2.\nTEST(Layout, IsAligned) {\n}\n\n"
             "/// Any of them.\n// Covers layout-1.\nRC_GTEST_PROP(Layout, Holds, ()) {\n}\n")

    def complaints(self, rows=ROWS, tests=TESTS, path="tests/core/a_test.cpp"):
        sections, found = coverage.requirements_in(self.HEAD + rows)
        covering, wrong = coverage.tests_in(path, tests)
        return found + wrong + coverage.complaints_about(sections, covering)

    def refuses(self, *words, **changed):
        found = self.complaints(**changed)
        self.assertEqual(len(found), 1, found)
        for word in words:
            self.assertIn(word, found[0])

    def test_rows_have_tests_or_reasons(self):
        self.assertEqual(self.complaints(), [])
        self.refuses("tests/requirements.md:14: layout-4 has neither a test nor a reason", rows=self.ROWS + "| layout-4 | x | |\n")
        self.refuses("layout-4 has neither", rows=self.ROWS + "| layout-4 | x | here: in another way |\n")
        self.refuses("layout-3 is not ours, but Layout.IsAligned covers it", tests=self.TESTS.replace("layout-2", "layout-3"))

    def test_an_id_is_that_of_one_requirement(self):
        self.refuses("tests/requirements.md:14: the id layout-2 is used twice, first in line 12",
                     rows=self.ROWS + "| layout-2 | x | open: y |\n")
        self.refuses("tests/core/a_test.cpp:1: Layout.IsAligned covers layout-9, which is not a requirement",
                     tests=self.TESTS.replace("layout-2", "layout-9"))
        self.refuses("tests/core/a_test.cpp:1: the id layout-1 is used twice", tests=self.TESTS.replace("layout-2", "layout-1"))

    def test_rows_have_a_form(self):
        self.refuses("tests/requirements.md:14: expected | id |", rows=self.ROWS + "| layout-4 | x |\n")
        self.refuses("the note of layout-2 begins with none of", rows=self.ROWS.replace("open:", "later:"))

    def test_comments_have_a_form_and_stand_above_a_test(self):
        more = "// Covers layout-1.\n"
        for text in (more + "\nTEST(A, B) {}\n", more + "int a;\n", more + "class A {};\nTEST(A, B) {}\n"):
            self.refuses("begins no test", tests=self.TESTS + text)
        for text in ("// Covers: layout-1.\n", "// Covers layout-1 layout-2.\n", "// Covers layout-1\n", "//Covers all.\n"):
            self.refuses("tests/core/a_test.cpp:9: expected ids", tests=self.TESTS + text + "TEST(A, B) {}\n")

    def test_a_long_list_goes_on_in_the_next_line_and_python_has_its_own_mark(self):
        tests, wrong = coverage.tests_in("tests/a.cpp", "// Covers layout-1,\n// layout-2.\nTEST_F(A, B) {}\n")
        self.assertEqual((tests[0].name, tests[0].ids, wrong), ("A.B", ["layout-1", "layout-2"], []))
        tests, wrong = coverage.tests_in("tests/interop/dcp_test.py", "class A:\n    # Covers layout-1.\n    def test_b(self):\n")
        self.assertEqual((tests[0].name, tests[0].ids, wrong), ("interop.dcp: test_b", ["layout-1"], []))

    def test_the_page_says_of_each_row_what_shows_it(self):
        sections, _ = coverage.requirements_in(self.HEAD + self.ROWS)
        page = coverage.page_of(sections, coverage.tests_in("tests/a.cpp", self.TESTS)[0])
        self.assertIn("| layout-1 | starts are aligned | `Layout.IsAligned`, `Layout.Holds` |\n", page)
        self.assertIn("| layout-2 | ends are | `Layout.IsAligned`; open: of experts |\n", page)
        self.assertIn("| layout-3 | graphs | not ours: no graphs |\n", page)
        self.assertIn("| Layouts | 3 | 1 | layout-2 |  | 1 |\n| all | 3 | 1 | 1 | 0 | 1 |\n", page)

    def test_a_page_that_is_not_what_the_rows_give_is_stale(self):
        self.assertIn("docs/coverage.md is not what tests/requirements.md and the tests give: run scripts/coverage",
                      coverage.whole_tree("of another day"))


if __name__ == "__main__":
    unittest.main()

#include "cli/line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cwchar>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/message.h"

namespace convene::cli {
namespace {

constexpr int kMaxHistory = 1000;
constexpr std::string_view kBlockMark = "\"\"\"";
constexpr wchar_t kNotUtf8 = 0xFFFD;
constexpr wchar_t kCtrlC = 3;

// Keys that libedit has no name for, or does something else at; it knows the others.
struct Binding {
  const char* keys;
  const char* function;
};
constexpr Binding kBindings[] = {
    {"\\e[200~", "chat-paste"},
    {"\\e^M", "chat-new-line"},
    {"\\e^J", "chat-new-line"},
    {"^C", "chat-cancel"},
    {"^Z", "chat-stop"},
    {"\\e[A", "chat-up"},
    {"\\eOA", "chat-up"},
    {"\\e[B", "chat-down"},
    {"\\eOB", "chat-down"},
    {"^P", "ed-prev-history"},
    {"^N", "ed-next-history"},
    {"^I", "ed-insert"},
    {"^R", "em-inc-search-prev"},
    {"\\e[H", "ed-move-to-beg"},
    {"\\eOH", "ed-move-to-beg"},
    {"\\e[1~", "ed-move-to-beg"},
    {"\\e[F", "ed-move-to-end"},
    {"\\eOF", "ed-move-to-end"},
    {"\\e[4~", "ed-move-to-end"},
    {"\\e[3~", "ed-delete-next-char"},
    {"\\e[1;5C", "em-next-word"},
    {"\\e[1;5D", "ed-prev-word"},
    // Keys without a meaning here would leave their last character in the line.
    {"\\e[2~", "ed-unassigned"},
    {"\\e[5~", "ed-prev-history"},
    {"\\e[6~", "ed-next-history"},
    {"\\e[15~", "ed-unassigned"},
    {"\\e[17~", "ed-unassigned"},
    {"\\e[18~", "ed-unassigned"},
    {"\\e[19~", "ed-unassigned"},
    {"\\e[20~", "ed-unassigned"},
    {"\\e[21~", "ed-unassigned"},
    {"\\e[23~", "ed-unassigned"},
    {"\\e[24~", "ed-unassigned"},
    // A Ctrl-D that was typed before the terminal was ours comes as a zero.
    {"^@", "em-delete-or-list"},
};

}  // namespace

class LineEditor::Impl {
 public:
  Impl(ChatTerminal& terminal, std::optional<TurnHistory> history);
  ~Impl();

  std::optional<std::string> Read();

 private:
  struct Line {
    enum class End { kEntered, kCancelled, kClosed } end = End::kClosed;
    std::string text = {};
  };

  Line ReadLine(const char* prompt);
  Line ReadTurn();
  void Remember(const std::string& turn);

  static Impl& Of(EditLine* editor);
  static int ReadKey(EditLine* editor, wchar_t* key);
  static unsigned char Paste(EditLine* editor, wint_t);
  static unsigned char NewLine(EditLine* editor, wint_t);
  static unsigned char Cancel(EditLine* editor, wint_t);
  static unsigned char Stop(EditLine* editor, wint_t);
  static unsigned char Up(EditLine* editor, wint_t);
  static unsigned char Down(EditLine* editor, wint_t);
  int NextByte();
  void Redraw();

  ChatTerminal& terminal_;
  std::optional<TurnHistory> kept_;
  std::FILE* screen_ = nullptr;
  EditLine* editor_ = nullptr;
  History* history_ = nullptr;  // what Up goes through
  const char* prompt_ = "";
  bool is_cancelled_ = false;

  std::array<char, 4096> bytes_;  // read and not yet taken
  size_t next_ = 0;
  size_t num_bytes_ = 0;
  std::mbstate_t decoding_ = {};
};

LineEditor::Impl::Impl(ChatTerminal& terminal, std::optional<TurnHistory> history)
    : terminal_(terminal), kept_(std::move(history)) {
  // Terminals are UTF-8 also where LANG does not say so.
  if (std::setlocale(LC_CTYPE, "C.UTF-8") == nullptr) std::setlocale(LC_CTYPE, "");
  screen_ = fdopen(dup(terminal.descriptor()), "w");
  CHECK(screen_ != nullptr, "no descriptor for the terminal");
  editor_ = el_init("convene", stdin, screen_, screen_);
  history_ = history_init();
  CHECK(editor_ != nullptr && history_ != nullptr, "libedit cannot begin");
  HistEvent event;
  ::history(history_, &event, H_SETSIZE, kMaxHistory);
  ::history(history_, &event, H_SETUNIQUE, 1);
  if (kept_) {
    for (const std::string& turn : kept_->turns()) {
      ::history(history_, &event, H_ENTER, turn.c_str());
    }
  }
  el_set(editor_, EL_CLIENTDATA, this);
  el_wset(editor_, EL_GETCFN, &ReadKey);
  el_set(editor_, EL_HIST, ::history, history_);
  el_set(
      editor_, EL_PROMPT, +[](EditLine* editor) { return const_cast<char*>(Of(editor).prompt_); });
  el_set(editor_, EL_EDITOR, "emacs");
  // While it edits, Ctrl-C, Ctrl-Z and Ctrl-S come as keys, and line breaks as they are typed; at
  // other times the terminal stays as ChatTerminal wants it.
  el_set(editor_, EL_SETTY, "-d", "-isig", "-ixon", "-icrnl", "-inlcr", nullptr);
  el_set(editor_, EL_SETTY, "-x", "-icanon", "-echo", "-icrnl", nullptr);
  el_wset(editor_, EL_ADDFN, L"chat-paste", L"takes a pasted text", &Paste);
  el_wset(editor_, EL_ADDFN, L"chat-new-line", L"goes on in a new line", &NewLine);
  el_wset(editor_, EL_ADDFN, L"chat-cancel", L"begins anew", &Cancel);
  el_wset(editor_, EL_ADDFN, L"chat-stop", L"stops the program", &Stop);
  el_wset(editor_, EL_ADDFN, L"chat-up", L"the line above, or the turn before", &Up);
  el_wset(editor_, EL_ADDFN, L"chat-down", L"the line below, or the turn after", &Down);
  el_source(editor_, nullptr);
  for (const Binding& binding : kBindings) {
    el_set(editor_, EL_BIND, binding.keys, binding.function, nullptr);
  }
}

LineEditor::Impl::~Impl() {
  el_end(editor_);
  history_end(history_);
  std::fclose(screen_);
}

std::optional<std::string> LineEditor::Impl::Read() {
  for (;;) {
    const Line turn = ReadTurn();
    if (turn.end == Line::End::kCancelled) continue;
    if (turn.end == Line::End::kClosed) return std::nullopt;
    if (turn.text.find_first_not_of(" \t\n") != std::string::npos) Remember(turn.text);
    return turn.text;
  }
}

LineEditor::Impl::Line LineEditor::Impl::ReadTurn() {
  Line turn = ReadLine("> ");
  if (turn.end != Line::End::kEntered) return turn;
  // A pasted text may begin with the mark as well, and is there as a whole.
  if (turn.text.starts_with(kBlockMark) && turn.text.find('\n') == std::string::npos) {
    std::string block = turn.text.substr(kBlockMark.size());
    while (!block.ends_with(kBlockMark)) {
      Line next = ReadLine("... ");
      if (next.end != Line::End::kEntered) return next;
      block += block.empty() ? next.text : "\n" + next.text;
    }
    block.resize(block.size() - kBlockMark.size());
    if (block.ends_with('\n')) block.pop_back();
    return {Line::End::kEntered, block};
  }
  while (turn.text.ends_with('\\')) {
    Line next = ReadLine("... ");
    if (next.end != Line::End::kEntered) return next;
    turn.text.back() = '\n';
    turn.text += next.text;
  }
  return turn;
}

LineEditor::Impl::Line LineEditor::Impl::ReadLine(const char* prompt) {
  prompt_ = prompt;
  is_cancelled_ = false;
  static_cast<void>(terminal_.TakeContinued());  // of a stop since the line before: all is drawn
  int num_bytes = 0;
  const char* read = el_gets(editor_, &num_bytes);
  if (is_cancelled_) return {Line::End::kCancelled};
  if (read == nullptr || num_bytes <= 0) {
    std::fputs("\n", screen_);
    std::fflush(screen_);
    return {Line::End::kClosed};
  }
  std::string_view text(read, static_cast<size_t>(num_bytes));
  if (text.ends_with('\n')) text.remove_suffix(1);
  return {Line::End::kEntered, std::string(text)};
}

void LineEditor::Impl::Remember(const std::string& turn) {
  HistEvent event;
  ::history(history_, &event, H_ENTER, turn.c_str());
  if (!kept_) return;
  const Status added = kept_->Add(turn);
  if (added) return;
  PrintNote("what is typed is not kept for the next session: {}\n", added.error().message);
  kept_.reset();
}

LineEditor::Impl& LineEditor::Impl::Of(EditLine* editor) {
  void* impl = nullptr;
  el_get(editor, EL_CLIENTDATA, &impl);
  return *static_cast<Impl*>(impl);
}

// libedit loses what it has drawn when others write to the terminal, and its mode as well.
void LineEditor::Impl::Redraw() {
  el_set(editor_, EL_PREP_TERM, 0);
  el_set(editor_, EL_PREP_TERM, 1);
  el_set(editor_, EL_REFRESH);
}

// The next byte typed, or -1 if there will be none.
int LineEditor::Impl::NextByte() {
  while (next_ == num_bytes_) {
    if (terminal_.TakeResized()) el_resize(editor_);
    if (terminal_.TakeContinued()) Redraw();
    // Unlike read, poll is interrupted by every signal that is handled.
    pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (poll(&input, 1, -1) < 0) {
      if (errno == EINTR) continue;
      return -1;
    }
    const ssize_t num_read = read(STDIN_FILENO, bytes_.data(), bytes_.size());
    if (num_read < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (num_read <= 0) return -1;
    next_ = 0;
    num_bytes_ = static_cast<size_t>(num_read);
  }
  return static_cast<unsigned char>(bytes_[next_++]);
}

// As libedit wants it: 1 and a character, or 0 at the end.
int LineEditor::Impl::ReadKey(EditLine* editor, wchar_t* key) {
  Impl& self = Of(editor);
  for (;;) {
    const int byte = self.NextByte();
    if (byte < 0) return 0;
    const char text = static_cast<char>(byte);
    const size_t length = std::mbrtowc(key, &text, 1, &self.decoding_);
    if (length == static_cast<size_t>(-2)) continue;  // more bytes follow
    if (length == static_cast<size_t>(-1)) {
      *key = kNotUtf8;
      self.decoding_ = {};
    }
    return 1;
  }
}

// Up to the end of the paste; its lines stay in the line that is edited. Of a text that ends with a
// line break this one is not meant.
unsigned char LineEditor::Impl::Paste(EditLine* editor, wint_t) {
  constexpr std::wstring_view kEnd = L"\x1b[201~";
  std::wstring text;
  while (!text.ends_with(kEnd)) {
    wchar_t key = 0;
    if (el_wgetc(editor, &key) != 1) return CC_EOF;
    if (key == kCtrlC) return Cancel(editor, 0);  // of a paste that never ends
    const bool is_second_of_line_break = key == L'\n' && text.ends_with(L'\r');
    if (key != 0 && !is_second_of_line_break) text += key;
  }
  text.resize(text.size() - kEnd.size());
  for (wchar_t& key : text) {
    if (key == L'\r') key = L'\n';
  }
  if (text.ends_with(L'\n')) text.pop_back();
  if (el_winsertstr(editor, text.c_str()) != 0 && !text.empty()) return CC_ERROR;
  return CC_REFRESH;
}

unsigned char LineEditor::Impl::NewLine(EditLine* editor, wint_t) {
  return el_insertstr(editor, "\n") == 0 ? CC_REFRESH : CC_ERROR;
}

unsigned char LineEditor::Impl::Cancel(EditLine* editor, wint_t) {
  Of(editor).is_cancelled_ = true;
  el_push(editor, "\r");  // what was typed stays on the screen, and the next prompt comes below
  return CC_NORM;
}

unsigned char LineEditor::Impl::Stop(EditLine* editor, wint_t) {
  el_set(editor, EL_PREP_TERM, 0);
  Of(editor).terminal_.Stop();
  static_cast<void>(Of(editor).terminal_.TakeContinued());  // what follows is drawn below
  el_set(editor, EL_PREP_TERM, 1);
  return CC_REDISPLAY;
}

unsigned char LineEditor::Impl::Up(EditLine* editor, wint_t) {
  const LineInfoW* line = el_wline(editor);
  const std::wstring_view before(line->buffer, static_cast<size_t>(line->cursor - line->buffer));
  const size_t line_break = before.rfind(L'\n');
  if (line_break == std::wstring_view::npos) {
    el_push(editor, "\x10");
    return CC_NORM;
  }
  const size_t column = before.size() - line_break - 1;
  const size_t above = before.substr(0, line_break).rfind(L'\n') + 1;  // npos + 1 is 0
  const size_t target = above + std::min(column, line_break - above);
  el_cursor(editor, static_cast<int>(target) - static_cast<int>(before.size()));
  return CC_CURSOR;
}

unsigned char LineEditor::Impl::Down(EditLine* editor, wint_t) {
  const LineInfoW* line = el_wline(editor);
  const std::wstring_view text(line->buffer, static_cast<size_t>(line->lastchar - line->buffer));
  const auto cursor = static_cast<size_t>(line->cursor - line->buffer);
  const size_t line_break = text.find(L'\n', cursor);
  if (line_break == std::wstring_view::npos) {
    el_push(editor, "\x0e");
    return CC_NORM;
  }
  const size_t begin = cursor == 0 ? 0 : text.rfind(L'\n', cursor - 1) + 1;
  const size_t below = line_break + 1;
  const size_t below_end = std::min(text.find(L'\n', below), text.size());
  const size_t target = std::min(below + (cursor - begin), below_end);
  el_cursor(editor, static_cast<int>(target) - static_cast<int>(cursor));
  return CC_CURSOR;
}

LineEditor::LineEditor(ChatTerminal& terminal, std::optional<TurnHistory> history)
    : impl_(std::make_unique<Impl>(terminal, std::move(history))) {}
LineEditor::~LineEditor() = default;

std::optional<std::string> LineEditor::Read() { return impl_->Read(); }

}  // namespace convene::cli

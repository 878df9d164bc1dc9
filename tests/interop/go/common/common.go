// Package common is what the Go clients under test share: arguments, files of records, a member's notes, conditions.
package common

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Deadline is when a command that has not come to its end hangs.
const Deadline = 90 * time.Second

// Arguments are the key=value pairs that follow the name of a command.
type Arguments map[string]string

// Run runs the command that the process was called with: COMMAND key=value ...
func Run(commands map[string]func(Arguments) error) {
	args := Arguments{}
	for _, argument := range os.Args[2:] {
		name, value, _ := strings.Cut(argument, "=")
		args[name] = value
	}
	command, known := commands[os.Args[1]]
	if !known {
		Fail(fmt.Errorf("no command %s", os.Args[1]))
	}
	if err := command(args); err != nil {
		Fail(err)
	}
}

// Fail ends the process and says why.
func Fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// Number is an argument that is a number.
func (args Arguments) Number(name string) int {
	n, err := strconv.Atoi(args[name])
	if err != nil {
		Fail(fmt.Errorf("argument %s: %w", name, err))
	}
	return n
}

// Milliseconds is an argument that is a time in milliseconds.
func (args Arguments) Milliseconds(name string) time.Duration {
	return time.Duration(args.Number(name)) * time.Millisecond
}

// Topics are those of the argument of that name.
func (args Arguments) Topics() []string {
	return strings.Split(args["topics"], ",")
}

// WithDeadline is a context for a whole command.
func WithDeadline() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), Deadline)
}

// UntilInputEnds is a context that ends with the standard input, which tells a member to leave.
func UntilInputEnds() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx
}

// Header is a record's header, in JSON a list of a name and a value.
type Header struct {
	Name  string
	Value *string
}

func (h *Header) UnmarshalJSON(data []byte) error {
	pair := []any{&h.Name, &h.Value}
	return json.Unmarshal(data, &pair)
}

func (h Header) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{h.Name, h.Value})
}

// Record is a line of the files that clients read and write.
type Record struct {
	Partition int32    `json:"p"`
	Offset    int64    `json:"o"`
	Key       *string  `json:"k"`
	Value     *string  `json:"v"`
	Headers   []Header `json:"h"`
}

// BytesOf is a text's bytes, nil for none.
func BytesOf(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

// TextOf is the text that bytes hold, nil for none.
func TextOf(data []byte) *string {
	if data == nil {
		return nil
	}
	text := string(data)
	return &text
}

// Produce reads the records of the argument `input` and has them written by each job, with its codec to its topic.
func Produce(args Arguments, write func(codec, topic string, records []Record) error) error {
	records, err := readRecords(args["input"])
	if err != nil {
		return err
	}
	for _, job := range strings.Split(args["jobs"], ",") {
		codec, topic, _ := strings.Cut(job, ":")
		if err := write(codec, topic, records); err != nil {
			return fmt.Errorf("%s: %w", job, err)
		}
	}
	return nil
}

func readRecords(path string) ([]Record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var records []Record
	for _, line := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		records = append(records, r)
	}
	return records, nil
}

// Consume has each topic of the arguments read, and writes the records to its file in the folder `out`.
func Consume(args Arguments, read func(topic string, take func(Record) error) error) error {
	for _, topic := range args.Topics() {
		if err := consumeTopic(args, topic, read); err != nil {
			return fmt.Errorf("%s: %w", topic, err)
		}
	}
	return nil
}

func consumeTopic(args Arguments, topic string, read func(string, func(Record) error) error) error {
	file, err := os.Create(filepath.Join(args["out"], topic+".jsonl"))
	if err != nil {
		return err
	}
	defer file.Close()
	out := bufio.NewWriter(file)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	if err := read(topic, func(r Record) error { return encoder.Encode(r) }); err != nil {
		return err
	}
	return out.Flush()
}

// FeedLines calls `send` for each line of the standard input with its key and its value.
func FeedLines(send func(key, value string) error) error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), "\t")
		if err := send(key, value); err != nil {
			return err
		}
	}
	return lines.Err()
}

// Acknowledgements counts what was acknowledged and keeps the first error.
type Acknowledgements struct {
	mutex sync.Mutex
	count int
	err   error
}

// Note takes the outcome of so many records.
func (a *Acknowledgements) Note(records int, err error) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if err == nil {
		a.count += records
	} else if a.err == nil {
		a.err = err
	}
}

// Finish prints the count, or returns the first error.
func (a *Acknowledgements) Finish(errs ...error) error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if err := errors.Join(append(errs, a.err)...); err != nil {
		return err
	}
	fmt.Println("acknowledged", a.count)
	return nil
}

// Check is an error that says what does not hold.
func Check(holds bool, what string) error {
	if !holds {
		return fmt.Errorf("does not hold: %s", what)
	}
	return nil
}

// ExpectError checks that an error is the wanted one.
func ExpectError(got, wanted error) error {
	return Check(errors.Is(got, wanted), fmt.Sprintf("error %v, not %v", wanted, got))
}

// Until waits for a condition.
func Until(condition func() (bool, error), what string) error {
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if holds, err := condition(); holds || err != nil {
			return err
		}
	}
	return Check(false, what)
}

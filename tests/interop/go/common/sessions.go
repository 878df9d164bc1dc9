package common

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"time"
)

const (
	pace             = 20 * time.Millisecond
	sessionsPatience = 30 * time.Second
)

// Session is a client that writes and reads a topic in a group, as one user.
type Session interface {
	// Send writes a value, which is acknowledged when Flush returns at the latest.
	Send(value string) error
	Flush() error
	// Poll returns the values that have come, and waits for them at most for so long.
	Poll(wait time.Duration) ([]string, error)
}

// Sessions writes and reads until the standard input ends, while sessions end and are renewed; then until the topic may not
// be read any more. What is printed is described in tests/interop/README.md.
func Sessions(args Arguments, client string, begin func(way Way, topic, group string) (Session, error)) error {
	text, err := os.ReadFile(args["plan"])
	if err != nil {
		return err
	}
	var plan []Way
	if err := json.Unmarshal(text, &plan); err != nil {
		return err
	}
	session, err := begin(plan[0], args["topic"], "readers-sessions-"+client)
	if err != nil {
		return err
	}
	once, read, written := map[string]bool{}, 0, 0
	poll := func(wait time.Duration) error {
		values, err := session.Poll(wait)
		for _, value := range values {
			once[value] = true
		}
		read += len(values)
		return err
	}
	for stopping := UntilInputEnds(); stopping.Err() == nil; {
		if err := session.Send(fmt.Sprint(written)); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		written++
		begins := read == 0
		if err := poll(pace); err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		if begins && read > 0 {
			tellStep("begun", nil)
		}
	}
	if err := session.Flush(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	for end := time.Now().Add(sessionsPatience); len(once) < written && time.Now().Before(end); {
		if err := poll(10 * pace); err != nil {
			return fmt.Errorf("poll: %w", err)
		}
	}
	records := map[string]int{"written": written, "read": len(once), "repeated": read - len(once)}
	if counts, has := session.(interface{ Counts() map[string]int }); has {
		maps.Copy(records, counts.Counts())
	}
	tellStep("records", records)
	for end := time.Now().Add(sessionsPatience); time.Now().Before(end); {
		if err := poll(10 * pace); err != nil {
			tellStep("rule removed", err.Error())
			return nil
		}
	}
	tellStep("rule removed", nil)
	return nil
}

func tellStep(step string, outcome any) {
	line, _ := json.Marshal(map[string]any{"step": step, "outcome": outcome})
	fmt.Println(string(line))
}

package common

import (
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"hash"
	"os"
	"sync"
)

// Records are written and read in each way of a plan.
const Records = 100

// Way is one way to log in, of a plan that tests/interop/README.md describes.
type Way struct {
	Name, Bootstrap, Ca, Cert, Mechanism, User, Password string
	Use                                                  bool
	// How often it is tried what is refused, and by how many clients at once.
	Times  int
	AtOnce int `json:"at_once"`
}

// Steps are what a client does in a way: each returns how many records, or an error.
type Steps struct {
	Write func(way Way, topic string, count int) (int, error)
	Read  func(way Way, group string) (int, error)
}

// Secure goes through the ways of a plan, and says what came of each step.
func Secure(args Arguments, client string, steps Steps) error {
	text, err := os.ReadFile(args["plan"])
	if err != nil {
		return err
	}
	var plan []Way
	if err := json.Unmarshal(text, &plan); err != nil {
		return err
	}
	for _, way := range plan {
		tell := func(step string, count int, err error) {
			outcome := fmt.Sprint(count)
			if err != nil {
				outcome = err.Error()
			}
			line, _ := json.Marshal(map[string]string{"way": way.Name, "step": step, "outcome": outcome})
			fmt.Println(string(line))
		}
		if !way.Use {
			way.repeat(func() {
				count, err := steps.Write(way, "orders", 1)
				tell("refused", count, err)
			})
			continue
		}
		count, err := steps.Write(way, "orders", Records)
		tell("write", count, err)
		count, err = steps.Read(way, "readers-"+client+"-"+way.Name)
		tell("read", count, err)
		way.repeat(func() {
			count, err := steps.Write(way, "secret", 1)
			tell("denied topic", count, err)
			count, err = steps.Read(way, "others")
			tell("denied group", count, err)
		})
	}
	return nil
}

// repeat takes steps as often as the plan says, each time by new clients, some of them at once.
func (way Way) repeat(steps func()) {
	places := make(chan struct{}, way.AtOnce)
	var clients sync.WaitGroup
	for range way.Times {
		places <- struct{}{}
		clients.Go(func() {
			steps()
			<-places
		})
	}
	clients.Wait()
}

// TLS is what a way's session begins with.
func (way Way) TLS() *tls.Config {
	pool := x509.NewCertPool()
	authorities, err := os.ReadFile(way.Ca)
	if err != nil || !pool.AppendCertsFromPEM(authorities) {
		Fail(fmt.Errorf("%s holds no authority: %v", way.Ca, err))
	}
	config := &tls.Config{RootCAs: pool}
	if way.Cert != "" {
		certificate, err := tls.LoadX509KeyPair(way.Cert, way.Cert)
		if err != nil {
			Fail(err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config
}

// Hash is that of the way's mechanism.
func (way Way) Hash() func() hash.Hash {
	if way.Mechanism == "SCRAM-SHA-256" {
		return sha256.New
	}
	return sha512.New
}

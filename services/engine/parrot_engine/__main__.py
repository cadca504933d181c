"""`python -m parrot_engine`. The guard matters: the model's process imports this module again."""

from parrot_engine.main import main

if __name__ == "__main__":
    main()
